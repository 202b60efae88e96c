"""Options that several subcommands share."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from .misuse import misuse

MOST = 2**31 - 1
Json: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output.")
]


def read_integers(text: str) -> list[int]:
    """The numbers of "ID,ID,...", each 0 or more. Raises ValueError."""
    return _integers(text, least=0)


def read_sizes(text: str) -> tuple[int, ...]:
    """The numbers of "N,N,...", each 1 or more. Raises ValueError."""
    return tuple(_integers(text, least=1))


def integers(option: str, text: str, least: int) -> list[int]:
    """The numbers of "ID,ID,...". Raises typer.BadParameter naming the option."""
    try:
        return _integers(text, least)
    except ValueError as error:
        raise misuse(str(error), option) from None


def _integers(text: str, least: int) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < least or max(numbers) > MOST:
        raise ValueError(
            f"expected integers in {least} .. {MOST} separated by commas, got {text!r}"
        )
    return numbers
