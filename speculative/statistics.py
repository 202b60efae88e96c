"""What rounds of speculation did and took."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Statistics:
    """rounds: passes of the target after the prompt; drafted: drafts that were judged or would
    have been; accepted: those that stayed, in all and by their place in the draft; empty: rounds
    in which no drafter had an idea; skipped: rounds in which none was asked; times in seconds;
    rollback_bytes: copied between the device's state and host memory."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    empty: int = 0
    skipped: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    rollback_s: float = 0.0
    rollback_bytes: int = 0

    def count(self, drafted: int, accepted: int) -> None:
        """A round's draft of so many tokens, of which the first `accepted` stayed."""
        self.drafted += drafted
        self.accepted += accepted
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
            "draft_accepted_per_position": list(self.accepted_at),
            "draft_ms": 1e3 * self.draft_s,
            "verify_ms": 1e3 * self.verify_s,
            "rollback_ms": 1e3 * self.rollback_s,
            "rollback_bytes": self.rollback_bytes,
        }
