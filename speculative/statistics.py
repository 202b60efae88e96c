"""What rounds of speculation did and took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Drafted:
    """Of one drafter: drafts that were judged, in rounds and tokens; accepted: tokens that stayed;
    rejected: rounds of which none did."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0

    def count(self, drafted: int, accepted: int) -> None:
        """One more draft."""
        self.rounds += 1
        self.drafted += drafted
        self.accepted += accepted
        self.rejected += drafted > 0 and accepted == 0


@dataclass
class Statistics:
    """rounds: passes of the target after the prompt; drafted: drafts that were judged or would
    have been; accepted: those that stayed, in all and by their place in the draft; empty: rounds
    in which no drafter had an idea; skipped: rounds in which none was asked; rejected: rounds of
    which nothing stayed; by_drafter: the same for each drafter; times in seconds; rollback_bytes:
    copied between the device's state and host memory."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    empty: int = 0
    skipped: int = 0
    rejected: int = 0
    by_drafter: dict[str, Drafted] = field(default_factory=dict)
    draft_s: float = 0.0
    verify_s: float = 0.0
    rollback_s: float = 0.0
    rollback_bytes: int = 0

    def note_round(self, asked: bool, drafted: bool) -> None:
        """A round began, for which drafters were asked or not, with an outcome or not."""
        self.rounds += 1
        if not asked:
            self.skipped += 1
        elif not drafted:
            self.empty += 1

    def note_skipped(self, rounds: int) -> None:
        """So many rounds for which no drafter was asked."""
        self.rounds += rounds
        self.skipped += rounds

    def count(self, drafter: str, drafted: int, accepted: int) -> None:
        """A round's draft of so many tokens, of which the first `accepted` stayed."""
        self.by_drafter.setdefault(drafter, Drafted()).count(drafted, accepted)
        self.drafted += drafted
        self.accepted += accepted
        self.rejected += drafted > 0 and accepted == 0
        missing = drafted - len(self.drafted_at)
        self.drafted_at += [0] * missing
        self.accepted_at += [0] * missing
        for i in range(drafted):
            self.drafted_at[i] += 1
            self.accepted_at[i] += i < accepted

    def as_dict(self) -> dict[str, Any]:
        """The fields that timings get; times in milliseconds."""
        return {
            "draft_n": self.drafted,
            "draft_n_accepted": self.accepted,
            "draft_rounds": self.rounds,
            "draft_empty": self.empty,
            "draft_skipped": self.skipped,
            "draft_rejected": self.rejected,
            "draft_accepted_per_position": list(self.accepted_at),
            "draft_by_drafter": {name: vars(d).copy() for name, d in self.by_drafter.items()},
            "draft_ms": 1e3 * self.draft_s,
            "verify_ms": 1e3 * self.verify_s,
            "rollback_ms": 1e3 * self.rollback_s,
            "rollback_bytes": self.rollback_bytes,
        }


def add_shared(name: str, amount: float, whole: Statistics, parts: Sequence[Statistics]) -> None:
    """Add to a field of the whole, and equal shares to that of its parts; of whole numbers the
    first parts get what is left over."""
    for stats, more in ((whole, amount), *zip(parts, _shares(amount, len(parts)), strict=True)):
        setattr(stats, name, getattr(stats, name) + more)


def _shares(amount: float, n: int) -> list[float]:
    if isinstance(amount, int):
        return [amount // n + (i < amount % n) for i in range(n)]
    return [amount / n] * n
