"""Memory for copies of states: a card's while it has room, else pinned memory of the host.

Copies take their turn on the card's stream and nobody waits for them. What is no longer needed is
used again, since allocating either kind waits for the card."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

try:
    from .. import _cuda
except ImportError:
    _cuda = None  # type: ignore[assignment]

from .base import SPARE, aligned

STAGING = 16 << 20  # bytes of pinned memory that copies to the host pass through

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


class KeptMemory:
    """Lends memory of a card."""

    def __init__(self, card: Any) -> None:
        self.card = card
        self._of_card: list[Piece] = []
        self._pinned: list[Piece] = []
        self._staging: Any = None

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

    def raw(self, kept: KeptPart) -> np.ndarray:
        """The bytes of a copy, once they are there."""
        found = aligned(kept.nbytes, filled=True)
        if kept.lent.on_card:
            self.read([(kept.lent.memory, kept.start, found)])
        else:
            self.card.synchronize()
            found[...] = _bytes(kept.lent.memory)[kept.start : kept.start + kept.nbytes]
        return found

    def read(self, pieces: Iterable[tuple[Any, int, np.ndarray]]) -> None:
        """Fill arrays of bytes with memory of the card: [(memory, start, array), ...]. Through
        pinned memory, from which the host copies at its own speed."""
        if self._staging is None:
            self._staging = _cuda.PinnedMemory(STAGING)
        due: list[tuple[int, np.ndarray]] = []
        used = 0
        for memory, start, array in pieces:
            for at in range(0, array.nbytes, STAGING):
                part = array[at : at + STAGING]
                if used + part.nbytes > STAGING:
                    self._take(due)
                    used = 0
                memory.read_later(start + at, self._staging, used, part.nbytes)
                due.append((used, part))
                used += part.nbytes
        self._take(due)

    def _take(self, due: list[tuple[int, np.ndarray]]) -> None:
        """Copy what is on its way to pinned memory on to its arrays."""
        self.card.synchronize()
        staged = _bytes(self._staging)
        for at, part in due:
            part[...] = staged[at : at + part.nbytes]
        due.clear()


def _bytes(pinned: Any) -> np.ndarray:
    return np.frombuffer(memoryview(pinned), np.uint8)


def _fitting(free: list[Piece], size: int) -> Piece | None:
    """A free piece of about the size, which is free no more."""
    fits = [i for i, (_, n) in enumerate(free) if size <= n <= 2 * size]
    return free.pop(min(fits, key=lambda i: free[i][1])) if fits else None
