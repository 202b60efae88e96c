"""Recurrent memory: one row of convolution tail and delta-net state per sequence and layer.

The state holds every token it has seen, so tokens are kept all or none can be forgotten; a whole
sequence can always be cleared."""

from __future__ import annotations

from collections.abc import Sequence

from ...backends import Pools
from .base import Memory, Reservation


class RecurrentMemory(Memory):
    """states: names of the pool states whose row `seq` belongs to sequence `seq`."""

    def __init__(self, n_seqs: int, pools: Pools, states: Sequence[str]) -> None:
        super().__init__(n_seqs)
        self.pools, self.states = pools, list(states)

    def reserve(self, batch: Sequence[Reservation]) -> None:
        """Nothing to find: rows are fixed."""
        for seq, n in batch:
            self._pending[seq] += n

    def can_commit(self, seq: int, n: int) -> bool:
        """All pending tokens or, when there are none, none."""
        return n == self._pending[seq]

    def can_remove(self, seq: int, start: int) -> bool:
        """Nothing, or everything."""
        return self._pending[seq] == 0 and start in (0, self._length[seq])

    def _remove(self, seq: int, start: int) -> None:
        """Back to the first token: the state before it is zero."""
        had = self._length[seq]
        super()._remove(seq, start)
        if had and start == 0:
            for name in self.states:
                self.pools.zero_row(name, seq)

    def max_rollback(self, seq: int) -> int:
        """None."""
        return 0
