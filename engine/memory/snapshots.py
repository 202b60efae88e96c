"""Rollback by keeping the states of the last tokens: a ring of planes for each sequence."""

from __future__ import annotations

from collections.abc import Sequence

from ...backends import Pools
from ...models.memories import RING
from .base import Reservation
from .recurrent import RecurrentLayout, RecurrentMemory


class Snapshots(RecurrentMemory):
    """window + 1 states: the newest in plane `newest`, the one j tokens before in the j-th plane
    after it. Which plane a pass reads and where its newest goes are data, so planes never go
    stale, and rollback reaches over passes."""

    name, inputs = "snapshots", RING

    def __init__(self, n_seqs: int, pools: Pools, states: Sequence[str], window: int = 0) -> None:
        super().__init__(n_seqs, pools, states, window)
        self.planes = self.window + 1
        self._newest = [0] * self.n_seqs
        self._read = [0] * self.n_seqs
        self._depth = [0] * self.n_seqs

    @classmethod
    def layout(cls, window: int) -> RecurrentLayout:
        """A plane more than tokens to forget."""
        return RecurrentLayout(planes=window + 1)

    def numbers(self, seq: int) -> tuple[int, ...]:
        """The plane read, and the plane of the newest state."""
        return self._read[seq], self._newest[seq]

    def _advance(self, item: Reservation) -> None:
        seq, n = item.seq, item.n + item.again
        self._read[seq] = self._newest[seq]
        self._newest[seq] = (self._newest[seq] - n) % self.planes
        self._depth[seq] = min(self._depth[seq] + n, self.window)

    def can_commit(self, seq: int, n: int) -> bool:
        """As long as the state after the n-th is kept."""
        return 0 <= self._pending[seq] - n <= min(self._pending[seq], self._depth[seq])

    def _commit(self, seq: int, n: int) -> None:
        self._go_back(seq, self._pending[seq] - n)
        super()._commit(seq, n)

    def _reaches(self, seq: int, back: int) -> bool:
        return back <= self._depth[seq]

    def _go_back(self, seq: int, back: int) -> None:
        self._newest[seq] = (self._newest[seq] + back) % self.planes
        self._depth[seq] -= back

    def _reset(self, seq: int) -> None:
        self._newest[seq] = self._read[seq] = self._depth[seq] = 0
        super()._reset(seq)

    def _intact(self, seq: int) -> bool:
        return self.can_commit(seq, 0)

    def _undo(self, seq: int) -> None:
        self._go_back(seq, self._pending[seq])

    def max_rollback(self, seq: int) -> int:
        """As many states as are kept before the newest."""
        return min(self._pending[seq], self._depth[seq])

    def _place(self, seq: int) -> tuple[int, ...]:
        return (seq, self._newest[seq])
