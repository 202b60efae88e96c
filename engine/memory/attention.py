"""Paged attention memory: pages of 256 positions, a block table row per sequence.

Source of the paging idea: Kwon et al. 2023, "Efficient Memory Management for LLM Serving"."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...graph.errors import RequestError
from ...models.step import PAGE
from .base import Memory, Reservation


class PagedKV(Memory):
    """Which pages hold which positions. block_table: i32 [n_seqs, pages_per_seq]."""

    def __init__(self, n_seqs: int, n_pages: int, n_ctx: int) -> None:
        super().__init__(n_seqs)
        self.n_ctx = n_ctx
        self.block_table = np.zeros((n_seqs, -(-n_ctx // PAGE)), np.int32)
        self._held: list[int] = [0] * n_seqs
        self._free = list(range(n_pages))[::-1]

    def reserve(self, batch: Sequence[Reservation]) -> None:
        """Take pages for the new positions. Raises RequestError when the context is full."""
        plan: list[tuple[int, int, int]] = []
        wanted = 0
        for seq, n in batch:
            end = self._length[seq] + self._pending[seq] + n
            if end > self.n_ctx:
                raise RequestError(
                    f"sequence {seq}: {end} tokens do not fit in a context of {self.n_ctx}; "
                    "load with a larger context (-c) or shorten the prompt"
                )
            pages = -(-end // PAGE)
            plan.append((seq, n, pages))
            wanted += max(0, pages - self._held[seq])
        if wanted > len(self._free):
            raise RequestError(f"{wanted} attention pages needed, {len(self._free)} free")
        for seq, n, pages in plan:
            for at in range(self._held[seq], pages):
                self.block_table[seq, at] = self._free.pop()
            self._held[seq] = max(pages, self._held[seq])
            self._pending[seq] += n

    def row(self, seq: int, position: int) -> int:
        """The pool row of a position."""
        return int(self.block_table[seq, position // PAGE]) * PAGE + position % PAGE

    def rows(self, seq: int, start: int, n: int) -> np.ndarray:
        """The pool rows of positions start .. start + n, i32 [n]."""
        at = np.arange(start, start + n)
        return self.block_table[seq, at // PAGE] * PAGE + (at % PAGE).astype(np.int32)

    def can_commit(self, seq: int, n: int) -> bool:
        """Any prefix of the pending tokens."""
        return 0 <= n <= self._pending[seq]

    def _commit(self, seq: int, n: int) -> None:
        """Keep n; pages that held only forgotten positions are free again."""
        forgets = n < self._pending[seq]
        super()._commit(seq, n)
        if forgets:
            self._release(seq)

    def can_remove(self, seq: int, start: int) -> bool:
        """Any suffix, while nothing is pending."""
        return 0 <= start <= self._length[seq] and self._pending[seq] == 0

    def _remove(self, seq: int, start: int) -> None:
        super()._remove(seq, start)
        self._release(seq)

    def max_rollback(self, seq: int) -> int:
        """Everything pending."""
        return self._pending[seq]

    def _release(self, seq: int) -> None:
        keep = -(-self._length[seq] // PAGE)
        for at in range(self._held[seq] - 1, keep - 1, -1):
            self._free.append(int(self.block_table[seq, at]))
            self.block_table[seq, at] = 0
        self._held[seq] = keep
