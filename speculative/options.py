"""What a caller may ask of speculation."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..engine import Model
from ..engine.sequences import Sequences
from ..graph.errors import RequestError
from .acceptance import Rule, find_rule
from .drafter import Drafter, find_drafter
from .speculator import Speculator

MOST_DRAFTS = 256


@dataclass(frozen=True)
class Speculation:
    """kinds: drafters by name; they are asked in their own order of priority. draft_max: the most
    drafts of a round, None for each drafter's own; draft_min: fewer are not proposed; p_min: model
    drafters stop before a less likely token; draft_model: for the drafter `draft`; acceptance:
    "match" or "rejection"; adaptive: draft less, or not, where that is measured to be faster;
    draft_head: choose drafts of `mtp` among the draft head's tokens; lookup_static,
    lookup_dynamic: files of counts for `ngram-cache`, of which the second is also written when a
    Speculator is closed; rule: replaces `acceptance`.

    Raises RequestError for unknown names and values out of range."""

    kinds: tuple[str, ...]
    draft_max: int | None = None
    draft_min: int = 0
    p_min: float = 0.0
    draft_model: Model | None = None
    acceptance: str = "match"
    adaptive: bool = True
    draft_head: bool = False
    lookup_static: Path | None = None
    lookup_dynamic: Path | None = None
    rule: Rule | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.kinds:
            raise RequestError("speculation needs a drafter; name one, as in 'mtp'")
        for kind in self.kinds:
            find_drafter(kind)
        if len(set(self.kinds)) < len(self.kinds):
            raise RequestError(f"each drafter should be named once, got {', '.join(self.kinds)}")
        if self.draft_max is not None and not 1 <= self.draft_max <= MOST_DRAFTS:
            raise RequestError(f"draft_max should be 1 to {MOST_DRAFTS}, got {self.draft_max}")
        if not 0 <= self.draft_min <= (self.draft_max or MOST_DRAFTS):
            raise RequestError(
                f"draft_min should be 0 to draft_max ({self.draft_max or MOST_DRAFTS}), "
                f"got {self.draft_min}"
            )
        if not 0.0 <= self.p_min <= 1.0:
            raise RequestError(f"p_min should be 0 to 1, got {self.p_min}")
        find_rule(self.acceptance)

    @property
    def drafters(self) -> list[type[Drafter]]:
        """The drafters' classes in the order in which they are asked."""
        return sorted((find_drafter(kind) for kind in self.kinds), key=lambda d: d.priority)

    @property
    def longest(self) -> int:
        """The most drafts that a round can have."""
        return max(self.most(d) for d in self.drafters)

    def open(self, sequences: Sequences) -> Speculator:
        """Drafters for a session. Raises RequestError when they cannot draft for it."""
        return Speculator(sequences, self)

    def most(self, drafter: type[Drafter]) -> int:
        """The most drafts that a drafter is asked for."""
        return drafter.default_max if self.draft_max is None else self.draft_max

    @property
    def judge(self) -> Rule:
        """The rule of acceptance."""
        return self.rule or find_rule(self.acceptance)


def speculation_of(names: str) -> Speculation:
    """The Speculation of "KIND[,KIND]". Raises RequestError for unknown names."""
    return Speculation(tuple(kind.strip() for kind in names.split(",")))
