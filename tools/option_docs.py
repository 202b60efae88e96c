"""The page docs/options.md: every option of every command, from the same declarations as --help."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from .dispatch import COMMANDS, function_of

PAGE = Path("docs/options.md")
HEAD = """# Options

Generated from the declarations of the options by `make docs`; do not edit.
[command.md](command.md) says what the commands do.
"""
TABLE = "| option | default | meaning |\n|---|---|---|\n"


def generate() -> str:
    """The page's text."""
    return HEAD + "".join(section(name) for name in COMMANDS)


def section(name: str) -> str:
    """The table of a command."""
    function = function_of(COMMANDS[name])
    rows = [row(function, each) for each in _parameters(function)]
    return f"\n## {name}\n\n{COMMANDS[name].summary}\n\n{TABLE}" + "".join(rows)


def row(function: Callable[..., None], parameter: inspect.Parameter) -> str:
    """The line of an option."""
    kind, info = get_args(parameter.annotation)
    check = getattr(function, "checks", {}).get(parameter.name)
    meaning = info.help + (f" Expects {check.want}." if check else "")
    names = ", ".join(f"`{flag}`" for flag in flags(parameter))
    value = f" `{info.metavar}`" if info.metavar and flags(parameter)[0] != info.metavar else ""
    cells = [names + value, _default(kind, parameter.default, info.show_default), meaning]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def flags(parameter: inspect.Parameter) -> list[str]:
    """The names of an option, or what stands for an argument."""
    _, info = get_args(parameter.annotation)
    declared = [info.default, *(getattr(info, "param_decls", None) or ())]
    named = [flag for flag in declared if isinstance(flag, str) and flag.startswith("-")]
    return named or [info.metavar or parameter.name.upper()]


def _default(kind: Any, default: Any, shown: Any) -> str:
    if isinstance(shown, str):
        return shown
    if default is inspect.Parameter.empty:
        return "required"
    return "" if kind is bool or default is None else f"{default}"


def _parameters(function: Callable[..., None]) -> list[inspect.Parameter]:
    return list(inspect.signature(function, eval_str=True).parameters.values())
