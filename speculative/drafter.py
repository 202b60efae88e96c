"""The contract of drafters and their registry: one file each beside this one.

A drafter guesses how sequences go on. It holds state per sequence, and learns of a sequence only
through `begin` (its whole text is replaced), `observe` (tokens were committed) and `clear`."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeAlias, TypeVar

from ..graph.errors import GraphError, RequestError

if TYPE_CHECKING:
    import numpy as np

    from ..engine import Model
    from ..engine.sequences import Sequences

# ids int [n], probabilities f64 [n] that sum to 1
Distribution: TypeAlias = "tuple[np.ndarray, np.ndarray]"


@dataclass(frozen=True)
class Draw:
    """Draft by drawing, for acceptance by rejection: at this temperature, with this seed."""

    temperature: float
    seed: int


@dataclass(frozen=True)
class Ask:
    """A sequence to guess for. context: its committed tokens and then the newest one, which is
    sampled but not evaluated; not to be kept or changed. limit: the most tokens wanted, >= 1.
    draw: how to draw tokens instead of picking the likeliest, for drafters that can."""

    seq: int
    context: Sequence[int]
    limit: int
    draw: Draw | None = None


@dataclass(frozen=True)
class Setup:
    """What a drafter is opened with. target: the sequences drafted for; draft_max: the most drafts
    of a round, None for each drafter's own; draft_min: fewer than this are not proposed; p_min:
    a drafter with probabilities stops before a token that is less likely; draft_model: the second
    model; draft_head: whether to choose among the draft head's tokens only; lookup_static,
    lookup_dynamic: files of n-gram counts, the second one also written by `close`; share_ngrams:
    whether what one sequence's text teaches may serve others; without, drafts of a sequence depend
    on its own text alone; draws: whether drafts may be asked for that are drawn (Ask.draw)."""

    target: Sequences
    draft_max: int | None = None
    draft_min: int = 0
    p_min: float = 0.0
    draft_model: Model | None = None
    draft_head: bool = False
    lookup_static: Path | None = None
    lookup_dynamic: Path | None = None
    share_ngrams: bool = False
    draws: bool = False


@dataclass(frozen=True)
class Draft:
    """Guessed tokens, none for "no idea". distributions: what each was drawn from, where the
    drafter draws; None where it picks."""

    tokens: list[int]
    distributions: list[Distribution] | None = None


class Drafter(ABC):
    """Guesses tokens for several sequences. A session's thread is its only user."""

    name: ClassVar[str]
    priority: ClassVar[int]  # drafters are asked in ascending order; the first with a guess wins
    default_max: ClassVar[int]  # the most tokens of a draft unless draft_max says otherwise
    wants_hidden: ClassVar[bool] = False  # whether observe needs the target's hidden rows

    @classmethod
    def open(cls, setup: Setup) -> Drafter:
        """A drafter for a session. Raises RequestError when it cannot draft for that."""
        return cls()

    def prepare(self) -> None:  # noqa: B027
        """Compile what drafts for any number of sequences run."""

    def begin(self, seq: int, prompt: Sequence[int], kept: int = 0) -> None:
        """A sequence's text is now this prompt, whatever it was before. kept: its leading tokens
        that the target holds already, which `observe` will not give again."""
        self.clear(seq)

    @abstractmethod
    def draft(self, asks: Sequence[Ask]) -> list[Draft]:
        """A guess for each ask, of at most its limit tokens. Changes nothing that `observe` of
        any outcome does not put right."""

    def observe(  # noqa: B027
        self, seq: int, tokens: Sequence[int], hidden: np.ndarray | None, context: Sequence[int]
    ) -> None:
        """The target has committed these tokens; hidden: its rows after the final norm, f32
        [len(tokens), n_embd], valid during the call only, None unless wanted, and where drafts
        were far when the tokens were evaluated. context: all committed tokens, these included."""

    def accept(self, seq: int, n_drafted: int, n_accepted: int) -> None:  # noqa: B027
        """How the target judged this drafter's last guess for the sequence."""

    @abstractmethod
    def clear(self, seq: int) -> None:
        """Forget a sequence."""

    def forget(self) -> None:  # noqa: B027
        """Forget everything, shared pools included."""

    def close(self) -> None:  # noqa: B027
        """The session is done with: write what is to be kept."""


DRAFTERS: dict[str, type[Drafter]] = {}
D = TypeVar("D", bound=type[Drafter])


def register_drafter(cls: D) -> D:
    """Class decorator: add a drafter under its name. Raises GraphError when taken."""
    if cls.name in DRAFTERS:
        raise GraphError(f"drafter {cls.name!r} is defined twice")
    DRAFTERS[cls.name] = cls
    return cls


@cache
def scan_drafters() -> None:
    """Import every file of this folder, so that its drafters register themselves. Once: requests
    ask for their drafters, and folders are slow to read."""
    from ..graph.op import scan

    scan(__package__, sys.modules[__package__].__path__)


def find_drafter(name: str) -> type[Drafter]:
    """The class of this name. Raises RequestError listing the known ones."""
    scan_drafters()
    if name not in DRAFTERS:
        known = ", ".join(sorted(DRAFTERS, key=lambda n: DRAFTERS[n].priority))
        raise RequestError(f"drafter {name!r} is not known; known: {known}", "kinds")
    return DRAFTERS[name]
