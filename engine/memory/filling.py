"""How memories fill the inputs of a pass that tell its graph where they keep things."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Part(NamedTuple):
    """A sequence's share of a pass: tokens, of which the first `again` are committed ones that run
    again, and the position of the first."""

    seq: int
    tokens: Sequence[int]
    again: int
    first: int


ONE_TOKEN = (0,)  # for fillers, which look at numbers of tokens alone


class Filler(ABC):
    """The inputs of one bound plan that belong to a memory."""

    @abstractmethod
    def fill(self, i: int, part: Part, at: int) -> None:
        """Write what item i needs, whose tokens are rows `at` and on. Its new positions are
        reserved and not committed."""

    def fill_singles(self, seqs: np.ndarray, positions: np.ndarray) -> None:
        """What `fill` does for a pass of one new token of each sequence, i32 [n] both. Where a
        decode step has many, arrays are faster than items."""
        for i, (seq, first) in enumerate(zip(seqs.tolist(), positions.tolist(), strict=True)):
            self.fill(i, Part(seq, ONE_TOKEN, 0, first), i)

    @abstractmethod
    def pad(self, items: int, total: int) -> None:
        """Write what makes nothing happen behind so many items and tokens."""
