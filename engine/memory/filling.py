"""How memories fill the inputs of a pass that tell its graph where they keep things."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A sequence's share of a pass: tokens, of which the first `again` are committed ones that run
    again, and the position of the first."""

    seq: int
    tokens: Sequence[int]
    again: int
    first: int


class Filler(ABC):
    """The inputs of one bound plan that belong to a memory."""

    @abstractmethod
    def fill(self, i: int, part: Part, at: int) -> None:
        """Write what item i needs, whose tokens are rows `at` and on. Its new positions are
        reserved and not committed."""

    @abstractmethod
    def pad(self, items: int, total: int) -> None:
        """Write what makes nothing happen behind so many items and tokens."""
