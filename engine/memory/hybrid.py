"""Several memories that act as one: all of them or none."""

from __future__ import annotations

from collections.abc import Sequence

from .base import Memory, Reservation


class HybridMemory(Memory):
    """Fans out to its parts. Parts are asked before any of them changes."""

    def __init__(self, parts: Sequence[Memory]) -> None:
        super().__init__(parts[0].n_seqs)
        self.parts = list(parts)

    def reserve(self, batch: Sequence[Reservation]) -> None:
        """Reserve in every part; a part that refuses leaves the earlier ones as they were.

        Attention memory is the only part that refuses, and it comes first."""
        for part in self.parts:
            part.reserve(batch)
        for seq, n in batch:
            self._pending[seq] += n

    def can_commit(self, seq: int, n: int) -> bool:
        """Whether every part can."""
        return all(p.can_commit(seq, n) for p in self.parts)

    def _commit(self, seq: int, n: int) -> None:
        super()._commit(seq, n)
        for part in self.parts:
            part._commit(seq, n)

    def can_remove(self, seq: int, start: int) -> bool:
        """Whether every part can."""
        return all(p.can_remove(seq, start) for p in self.parts)

    def _remove(self, seq: int, start: int) -> None:
        super()._remove(seq, start)
        for part in self.parts:
            part._remove(seq, start)

    def max_rollback(self, seq: int) -> int:
        """What the weakest part allows."""
        return min(p.max_rollback(seq) for p in self.parts)
