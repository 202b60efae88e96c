"""Writes graph/opmethods.pyi, which gives the builder's op methods their types.

`python -m riverrun.tools.gen_stub` in a checkout rewrites it; with --check it exits with 1 when
the file is out of date."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from ..graph.op import Op
from ..ops import OPS
from .generated import write_or_check

STUB = Path("graph/opmethods.pyi")


def _method(cls: type[Op]) -> str:
    """The method of an op; one that has more outputs with optional inputs is overloaded, and takes
    these by name where they are given."""
    optional = [n for n in cls.output_names() if f"{n}?" in cls.outputs]
    if not optional:
        return _signature(cls, len(cls.outputs), {})
    written = [cls.writes[name] for name in optional]
    without = _signature(cls, len(cls.outputs) - len(optional), dict.fromkeys(written, False))
    given = _signature(cls, len(cls.outputs), dict.fromkeys(written, True))
    return f"    @overload\n{without}    @overload\n{given}"


def _signature(cls: type[Op], n_outputs: int, given: dict[str, bool]) -> str:
    """One form of a method; given: whether inputs that decide over it are there."""
    parts, by_name = ["self"], bool(cls.inputs) and cls.inputs[-1].startswith("*")
    for name in cls.inputs:
        plain = name.rstrip("?")
        if given.get(plain) and not by_name:
            parts.append("*")
            by_name = True
        if plain in given:
            parts.append(f"{plain}: Value" if given[plain] else f"{plain}: None = ...")
        else:
            parts.append(f"{plain}: Value" + (" | None = ..." if name.endswith("?") else ""))
    if not by_name:
        parts.append("*")
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]
        default = "" if f.default is dataclasses.MISSING else " = ..."
        parts.append(f"{f.name}: {f.type}{default}")
    parts.append("name: str = ...")
    result = "Value" if n_outputs == 1 else f"tuple[{', '.join(['Value'] * n_outputs)}]"
    return f"    def {cls.name}({', '.join(parts)}) -> {result}: ...\n"


def generate() -> str:
    """The stub's text for the registered ops."""
    methods = "".join(_method(OPS[name]) for name in sorted(OPS))
    overloads = "from typing import overload\n\n" if "@overload" in methods else ""
    return f"{overloads}from .node import Value\n\nclass OpMethods:\n{methods}"


def main(arguments: list[str]) -> int:
    """Write or check; the exit code."""
    return write_or_check(STUB, generate(), f"{len(OPS)} ops", "make stub", arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
