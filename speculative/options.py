"""What a caller may ask of speculation."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..graph.errors import RequestError
from ..graph.fields import check_fields, integer, number, one_of, option
from .drafter import Setup, find_drafter
from .known import MATCH, REJECTION, known_drafters

if TYPE_CHECKING:
    from ..engine import Model
    from ..engine.sequences import Sequences
    from .acceptance import Rule
    from .drafter import Drafter
    from .speculator import Speculator
    from .trace import Trace

MOST_DRAFTS = 256


def read_kinds(text: str) -> tuple[str, ...]:
    """The drafters of "KIND,KIND"; none of "none"."""
    named = tuple(kind.strip() for kind in text.split(","))
    return () if named == ("none",) else named


@dataclass(frozen=True)
class Speculation:
    """kinds: drafters by name; they are asked in their own order of priority. draft_max: the most
    drafts of a round, None for each drafter's own; draft_min: fewer are not proposed; p_min: model
    drafters stop before a less likely token; draft_model: for the drafter `draft`; acceptance:
    "match" or "rejection"; adaptive: draft less, or not, where that is measured to be faster;
    draft_head: choose drafts of `mtp` among the draft head's tokens; lookup_static,
    lookup_dynamic: files of counts for `ngram-cache`, of which the second is also written when a
    Speculator is closed; share_ngrams: `ngram-mod` keeps one pool for all texts, which outlives
    them, instead of one for each; trace: called with a Traced for each sequence of each round,
    or True for a line to standard error, as RIVERRUN_DEBUG makes too; rule: replaces `acceptance`.

    Raises RequestError for unknown names and values out of range."""

    kinds: tuple[str, ...] = option(
        MISSING,
        "--spec",
        metavar="KIND[,KIND]",
        help=lambda: f"Drafters: {', '.join(known_drafters())}; or none.",
        absent=(),
        shown="none",
        read=read_kinds,
    )
    draft_max: int | None = option(
        None,
        "--draft-max",
        metavar="N",
        help="Most drafts of a round.",
        shown="each drafter's own",
        check=integer(1, MOST_DRAFTS),
    )
    draft_min: int = option(
        0,
        "--draft-min",
        metavar="N",
        help="Propose no fewer drafts than this.",
        check=integer(0, MOST_DRAFTS),
    )
    p_min: float = option(
        0.0,
        "--p-min",
        metavar="P",
        help="Model drafters stop before a less likely token.",
        check=number("a number in [0, 1]", lambda v: 0 <= v <= 1),
    )
    draft_model: Model | None = option(
        None, "--draft-model", metavar="FILE", help="GGUF file for --spec draft.", kind=Path
    )
    acceptance: str = option(
        MATCH,
        "--acceptance",
        metavar="RULE",
        help="match, or rejection (for draft and mtp).",
        check=one_of((MATCH, REJECTION)),
    )
    adaptive: bool = option(
        True, "--no-adaptive", help="Always draft at full length, whether it pays or not."
    )
    draft_head: bool = False
    lookup_static: Path | None = option(
        None, "--lookup-cache-static", metavar="FILE", help="Counts of pairs for ngram-cache."
    )
    lookup_dynamic: Path | None = option(
        None,
        "--lookup-cache-dynamic",
        metavar="FILE",
        help="Counts for ngram-cache, read if there and written in the end.",
    )
    share_ngrams: bool = option(
        False, "--share-ngrams", help="One pool of ngram-mod for all texts, which outlives them."
    )
    trace: Trace | bool = option(
        False,
        "--trace",
        kind=bool,
        help="A line for each round: who drafted what, and how much of it was kept.",
    )
    rule: Rule | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.kinds:
            raise RequestError("speculation needs a drafter; name one, as in 'mtp'", "kinds")
        for kind in self.kinds:
            find_drafter(kind)
        if len(set(self.kinds)) < len(self.kinds):
            raise RequestError(
                f"each drafter should be named once, got {', '.join(self.kinds)}", "kinds"
            )
        check_fields(self)
        if not (isinstance(self.trace, bool) or callable(self.trace)):
            raise RequestError(f"trace: expected a function, True or False, got {self.trace!r}")
        if self.draft_min > (self.draft_max or MOST_DRAFTS):
            raise RequestError(
                f"draft_min: expected at most draft_max, {self.draft_max}, got {self.draft_min}",
                "draft_min",
            )

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
        from .speculator import Speculator

        return Speculator(sequences, self)

    def setup(self, target: Sequences) -> Setup:
        """What drafters for these sequences are opened with."""
        return Setup(
            target,
            self.draft_max,
            self.draft_min,
            self.p_min,
            self.draft_model,
            self.draft_head,
            self.lookup_static,
            self.lookup_dynamic,
            self.share_ngrams,
            self.acceptance == REJECTION,
        )

    def most(self, drafter: type[Drafter]) -> int:
        """The most drafts that a drafter is asked for."""
        return drafter.default_max if self.draft_max is None else self.draft_max

    @property
    def judge(self) -> Rule:
        """The rule of acceptance."""
        from .acceptance import find_rule

        return self.rule or find_rule(self.acceptance)


def speculation_of(names: str) -> Speculation:
    """The Speculation of "KIND[,KIND]". Raises RequestError for unknown names."""
    return Speculation(read_kinds(names))
