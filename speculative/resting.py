"""Rounds in which no drafter is asked, between two looks at whether drafts pay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .adaptive import Length

# Rounds in front of drafts from which on drafters see hidden rows: as many tokens fit into the
# first pass of a draft.
ROWS_BEFORE = 6


@dataclass
class Rest:
    """Rounds of `company` sequences without drafts, `most` at most; timed: how many of them were
    timed, with seconds of their passes and of all of them; of_seq: how many each sequence was in.
    All are those that `count` has not seen. asked: drafters were asked, and had no idea; told: so
    many rounds, from the first of these on, lengths know of, since they were asked for them."""

    company: int
    most: int
    asked: bool = False
    told: int = 1
    rounds: int = 0
    timed: int = 0
    pass_s: float = 0.0
    whole_s: float = 0.0
    of_seq: dict[int, int] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """Rounds that are not over, the one in progress included."""
        return self.most - self.rounds

    def note(self, seqs: Sequence[int], times: tuple[float, float] | None) -> None:
        """A round of these sequences is over; seconds of its pass and of all of it."""
        self.rounds += 1
        if times is not None:
            self.timed += 1
            self.pass_s += times[0]
            self.whole_s += times[1]
        for seq in seqs:
            self.of_seq[seq] = self.of_seq.get(seq, 0) + 1

    def count(self, lengths: Iterable[Length]) -> None:
        """The rounds that are over are counted; what lengths do not know of they are told."""
        _skip(lengths, self.rounds - self.told)
        self.told = max(0, self.told - self.rounds)
        self.most -= self.rounds
        self.rounds = self.timed = 0
        self.pass_s = self.whole_s = 0.0
        self.of_seq = {}

    def look_behind(self, lengths: Iterable[Length]) -> None:
        """Lengths are about to be asked for the round behind the one in progress, and none is over
        that was not counted."""
        _skip(lengths, 1 - self.told)
        self.told = 2


def _skip(lengths: Iterable[Length], rounds: int) -> None:
    if rounds > 0:
        for length in lengths:
            length.skip(rounds)


@dataclass
class Distance:
    """How many rounds of so many sequences there may be until drafts that need hidden rows."""

    company: int = 0
    rounds: int = 0
