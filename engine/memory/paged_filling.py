"""Where passes put keys and values, and find those of their sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...models.memories import PAGE
from .filling import Filler, Part

if TYPE_CHECKING:
    from .paged import PagedRows


class PageFiller(Filler):
    """The pool row of every token, and the pages of every item's sequence."""

    def __init__(self, cache: PagedRows, rows: np.ndarray, table: np.ndarray) -> None:
        self.cache, self.rows, self.table = cache, rows, table

    def fill(self, i: int, part: Part, at: int) -> None:
        n, again, seq = len(part.tokens), part.again, part.seq
        if n == 1:
            # What runs again has its key and value where others may share them.
            self.rows[at] = -1 if again else self.cache.row(seq, part.first)
        elif n:
            self.rows[at : at + again] = -1
            rows = self.cache.rows(seq, part.first + again, n - again)
            self.rows[at + again : at + n] = rows
        if n:
            self.table[i] = self.cache.block_table[seq]

    def fill_singles(self, seqs: np.ndarray, positions: np.ndarray) -> None:
        n, table = len(seqs), self.cache.block_table
        self.table[:n] = table[seqs]
        self.rows[:n] = table[seqs, positions // PAGE] * PAGE + positions % PAGE

    def pad(self, items: int, total: int) -> None:
        self.rows[total:] = -1
