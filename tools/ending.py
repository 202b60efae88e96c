"""Options that say what ends a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..graph.fields import integer, option
from .options import MOST, read_integers


def read_stops(texts: Sequence[str]) -> tuple[str, ...]:
    """Stop texts, none of them empty. Raises ValueError."""
    if "" in texts:
        raise ValueError("expected some text, got none")
    return tuple(texts)


@dataclass(frozen=True)
class Ending:
    """What ends the text."""

    n: int = option(
        128,
        "-n",
        "--n-predict",
        metavar="N",
        help="Tokens to generate; -1: to the end token or the context's end.",
        check=integer(-1, MOST),
    )
    stop: tuple[str, ...] = option(
        (),
        "--stop",
        metavar="STR",
        help="Text that ends it; repeatable.",
        repeatable=True,
        read=read_stops,
    )
    stop_token_ids: list[int] | None = option(
        None,
        "--stop-token-ids",
        metavar="ID,ID,...",
        help="Tokens that end it, like the end token.",
        read=read_integers,
    )
    ignore_eos: bool = option(False, "--ignore-eos", help="Do not stop at the end token.")
