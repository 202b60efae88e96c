"""Memory for copies of states: a card's while it has room, else pinned memory of the host.

Copies take their turn on the card's stream and nobody waits for them. What is no longer needed is
used again, since allocating either kind waits for the card."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

try:
    from .. import _cuda
except ImportError:
    _cuda = None  # type: ignore[assignment]

from .base import SPARE

Piece = tuple[Any, int]  # memory and its bytes


class Lent:
    """Memory that goes back to a list when nobody holds this any more."""

    __slots__ = ("_home", "memory", "on_card", "size")

    def __init__(self, piece: Piece, on_card: bool, home: list[Piece]) -> None:
        self.memory, self.size = piece
        self.on_card, self._home = on_card, home

    def __del__(self) -> None:
        self._home.append((self.memory, self.size))


class KeptPart(NamedTuple):
    """A copy of a part of a state, of this shape: `nbytes` from `start` on."""

    lent: Lent
    start: int
    nbytes: int
    shape: tuple[int, ...]

    def copy_from(self, state: Any, at: int, size: int, offset: int) -> None:
        """Bytes of a state from `at` on to offset."""
        if self.lent.on_card:
            self.lent.memory.copy(self.start + offset, state, at, size)
        else:
            state.read_later(at, self.lent.memory, self.start + offset, size)

    def copy_to(self, state: Any, at: int, size: int, offset: int) -> None:
        """And back."""
        if self.lent.on_card:
            state.copy(at, self.lent.memory, self.start + offset, size)
        else:
            state.write_later(at, self.lent.memory, self.start + offset, size)

    def raw(self, card: Any) -> np.ndarray:
        """Its bytes, once they are there."""
        found = np.empty(self.nbytes, np.uint8)
        if self.lent.on_card:
            self.lent.memory.read(self.start, found)
        else:
            card.synchronize()
            whole = np.frombuffer(memoryview(self.lent.memory), np.uint8)
            found[...] = whole[self.start : self.start + self.nbytes]
        return found


class KeptMemory:
    """Lends memory of a card."""

    def __init__(self, card: Any) -> None:
        self.card = card
        self._of_card: list[Piece] = []
        self._pinned: list[Piece] = []

    def lend(self, size: int) -> Lent:
        """So much, of the card unless less than SPARE would stay free there."""
        again = _fitting(self._of_card, size)
        if again is None and self.card.free_bytes >= size + SPARE:
            self._of_card.clear()  # of other sizes: else all of them would add up
            with suppress(_cuda.CudaError):  # somebody else was quicker
                again = _cuda.CardMemory(self.card, size), size
        if again is not None:
            return Lent(again, True, self._of_card)
        again = _fitting(self._pinned, size)
        if again is None:
            self._pinned.clear()
            again = _cuda.PinnedMemory(size), size
        return Lent(again, False, self._pinned)


def _fitting(free: list[Piece], size: int) -> Piece | None:
    """A free piece of about the size, which is free no more."""
    fits = [i for i, (_, n) in enumerate(free) if size <= n <= 2 * size]
    return free.pop(min(fits, key=lambda i: free[i][1])) if fits else None
