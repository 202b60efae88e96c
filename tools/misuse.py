"""Errors of the command line. Each names the option or argument that it is about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import typer

from ..graph.errors import RiverrunError
from .wording import in_command_words


def misuse(message: str, *names: str) -> typer.BadParameter:
    """The error of what was given for these options and arguments, one or more; the caller raises
    it."""
    if not names:
        raise TypeError(f"expected the option that this is about: {message}")
    return typer.BadParameter(message, param_hint=quoted(names))


def quoted(names: tuple[str, ...]) -> str:
    """Names of options as messages have them."""
    return " / ".join(f"'{name}'" for name in names)


@contextmanager
def usage_errors(of: str | Mapping[str, tuple[str, ...]]) -> Iterator[None]:
    """Errors of values are errors of the command line: all of them of the option `of`, or those
    that name an argument in it of that argument's options. Others pass as they are."""
    try:
        yield
    except RiverrunError as error:
        names = (of,) if isinstance(of, str) else of.get(getattr(error, "argument", ""))
        if not names:
            raise
        raise misuse(in_command_words(str(error)), *names) from None
