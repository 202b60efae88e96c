"""What the engine needs of drafts: guesses for several sequences, judged after a pass that is
shared. The package of speculation implements it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from .chooser import Chooser
from .sampler import DeviceDraw
from .sequences import Sequences


@dataclass(frozen=True, slots=True)
class Entry:
    """A sequence in a round. token: its newest token, which is chosen and not evaluated; left:
    tokens wanted at most, most: drafts wanted at most, None for any."""

    seq: int
    token: int
    chooser: Chooser
    left: int | None = None
    most: int | None = None


class Proposal(Protocol):
    """A draft for an entry: the tokens to be evaluated behind its newest one."""

    @property
    def tokens(self) -> Sequence[int]:
        """The tokens."""

    @property
    def drafter_name(self) -> str:
        """Whose draft it is, "" for nobody's."""

    def cut(self, n: int) -> Proposal:
        """A proposal of the first n tokens: where there is no room for more."""


@runtime_checkable
class Drafting(Protocol):
    """Drafters for the sequences of one session, and what they know of each."""

    @property
    def hidden(self) -> bool:
        """Whether passes may have to give hidden rows."""

    def reads(self, company: int) -> bool:
        """Whether passes that begin, beside those of `company` sequences in all, should."""

    def prepare(self, draws: Sequence[DeviceDraw | None]) -> None:
        """Compile what drafts of any number of sequences run, where that waits to be asked for;
        draws: as `prepare_for` has them."""

    def prepare_for(self, draw: DeviceDraw | None) -> None:
        """Compile what judging drafts runs for sequences whose tokens a device draws so, None:
        whose logits are wanted."""

    def begin(self, seq: int, tokens: Sequence[int], kept: int) -> None:
        """A text begins with these tokens, of which the sequence holds the first `kept`."""

    def watch(self, seq: int, tokens: Sequence[int], hidden: np.ndarray | None) -> None:
        """Further tokens of the text were evaluated. hidden: f32 [len(tokens), n_embd], None where
        their pass gave none."""

    def rests(self, company: int) -> bool:
        """Begins a round of `company` sequences: whether no drafter would be asked in it, so that a
        device may choose. Then `watch` for each sequence and `note_rest` follow, else `propose`."""

    def rests_on(self) -> bool:
        """Whether the round behind the one in progress will be of that kind, too, while as many
        sequences are in it: its pass may be started before this one's is read."""

    def note_rest(
        self, seqs: Sequence[int], company: int, times: tuple[float, float] | None
    ) -> None:
        """A round without drafts is over, of these sequences: seconds of its pass of `company`
        tokens, and of all of it; None where other passes ran meanwhile."""

    def propose(self, entries: Sequence[Entry], company: int) -> Sequence[Any]:
        """A Proposal for each entry; the pass will have `company` sequences in all."""

    @property
    def can_withdraw(self) -> bool:
        """Whether a device may choose in a round without drafts for which drafters were asked."""

    def withdraw(self, company: int) -> None:
        """What `propose` gave is empty for the whole pass, and a device chooses: `watch` for each
        sequence and `note_rest` follow, and nothing else of the round."""

    def judge(self, proposal: Any, logits: np.ndarray) -> Iterator[int]:
        """The tokens of a round, each one chosen: drafts that stay, then one more. logits: f32
        [drafts + 1, n_vocab]. What the consumer takes is what `finish` is given."""

    def reads_logits(self, chooser: Chooser) -> bool:
        """Whether `judge` is to be called even where a device could choose."""

    def judge_choices(self, proposal: Any, choices: Iterable[int]) -> Iterator[int]:
        """As `judge`, in its place where a device has chosen, which it does as `chooser` would. The
        choices for drafts + 1 rows may not all be asked for, and are for `chooser` to accept."""

    def note_pass(self, tokens: int, sequences: int, again: bool, seconds: float) -> None:
        """The pass of the round had so many new tokens and sequences. again: tokens ran again."""

    def note_round(self, seconds: float) -> None:
        """The round is over for all: what came behind `propose` took so long."""

    def finish(
        self, proposal: Any, tokens: Sequence[int], ended: bool, hidden: np.ndarray | None
    ) -> None:
        """Commit what the tokens taken from `judge` leave of the pass. ended: the text stops at
        the last of them, so that drafts behind it were not judged; hidden: the rows of all."""

    def statistics(self, seq: int) -> dict[str, Any]:
        """Fields for the timings of the text that `begin` began."""

    def close(self) -> None:
        """The session is done with: write what is to be kept."""


@runtime_checkable
class Opener(Protocol):
    """What drafters are asked for: drafts of at most `longest` tokens."""

    @property
    def longest(self) -> int:
        """The most drafts of a round."""

    def open(self, sequences: Sequences) -> Drafting:
        """Drafters for a session. Raises RequestError when they cannot draft for it."""
