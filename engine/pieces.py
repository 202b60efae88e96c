"""Plans that are made by and by: what would compile them at once says which they are instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import IntEnum
from typing import NamedTuple


class Need(IntEnum):
    """Who needs a plan: a request that is alone, several whoever they are, prompts of some lengths,
    or rounds of drafts and those of the host."""

    ALONE, SEVERAL, LENGTHS, ROUNDS = range(4)


class Piece(NamedTuple):
    """A plan to come. compile: takes longest, from any thread; attach: gives the plan its memory,
    and records it on a device, between two steps of the engine. order: a Need, and what orders
    those of one; of pieces the least comes first."""

    order: tuple[int, ...]
    compile: Callable[[], object]
    attach: Callable[[], object]


_gathered: ContextVar[list[Piece] | None] = ContextVar("_gathered", default=None)


@contextmanager
def gathering() -> Iterator[list[Piece]]:
    """Within, in this thread, what `Runner.step` and `Ahead.prepare_all` would compile is put into
    this list."""
    found: list[Piece] = []
    before = _gathered.set(found)
    try:
        yield found
    finally:
        _gathered.reset(before)


def gathered() -> list[Piece] | None:
    """The list that pieces go to, None where plans are compiled at once."""
    return _gathered.get()
