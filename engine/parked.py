"""Texts that have left their sequences, and where a prompt goes on: from what any sequence holds,
at work or not, from a parked text, or from one in host memory.

A parked text has no sequence: its attention pages have an owner more, its states along the prompt
are those that were kept. Pages and states that others need are taken from the text that was used
longest ago, which goes to host memory as far as there is some for that."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .host_copies import HostCopy
from .host_texts import Found, HostTexts
from .items import common_length
from .memory.pages import MOST_PARKED
from .prompt_states import SHORT
from .prompts import WORTH_KEEPING
from .sequences import Sequences
from .session_memory import Reuse

# Of texts that have to go while others wait: bytes that a step copies to host memory, a few pages
# of the largest models, or a state.
STEP_BYTES = 48 << 20


@dataclass(slots=True, eq=False)
class Text:
    """A parked text and its place behind the sequences; copy: its copy in host memory, as far as
    that has come."""

    place: int
    tokens: list[int]
    copy: HostCopy | None = None


class Source(NamedTuple):
    """What a prompt goes on from: a sequence or a parked text that holds its first `common` tokens,
    of which `kept` need not be evaluated again."""

    kept: int = 0
    common: int = 0
    at: int = -1


class Parked:
    """The parked texts of a session, the one used last first."""

    def __init__(self, sequences: Sequences) -> None:
        self.sequences = sequences
        self.texts: list[Text] = []
        self._able = sequences.memory.shares
        limit = sequences.plan.options.host_cache_bytes if self._able else 0
        self.host = HostTexts(sequences.storage, limit)
        self._allowed = STEP_BYTES
        # Whether the copy of a text that is to go was put off to the next step.
        self.copying = False

    def begin_step(self) -> None:
        """As much as a step may may be copied again."""
        self._allowed, self.copying = STEP_BYTES, False

    @property
    def places(self) -> list[int]:
        """Where they lie."""
        return [text.place for text in self.texts]

    @property
    def n_tokens(self) -> int:
        """Tokens of all of them."""
        return sum(len(text.tokens) for text in self.texts)

    def in_place(self, seqs: Iterable[int], prompt: Sequence[int]) -> Source:
        """The best that free sequences have for a prompt that takes one; else the first of them."""
        sequences, best = self.sequences, Source()
        alike = sequences.alike(prompt)
        for seq in seqs:
            common = alike.get(seq, 0)
            kept = sequences.storage.in_place(seq, common) if common else 0
            if kept > best.kept or best.at < 0:
                best = Source(kept, common, seq)
        return best

    def elsewhere(self, seq: int, prompt: Sequence[int]) -> Source:
        """The best that other sequences and parked texts have."""
        if not self._able:
            return Source()
        first, most = prompt[0], len(prompt) - 1
        held = [(s, common) for s, common in self.sequences.alike(prompt).items() if s != seq]
        held += [
            (text.place, common_length(text.tokens, prompt, most))
            for text in self.texts
            if text.tokens[0] == first
        ]
        reachable, best = self.sequences.storage.reachable, Source()
        for at, common in held:
            if common > best.kept:
                best = max(best, Source(reachable(at, common), common, at))
        return best

    def from_host(self, prompt: Sequence[int], more_than: int) -> bool:
        """Whether a text in host memory has more of a prompt; room that is made for the prompt does
        not take it away."""
        found = self.host.find(prompt)
        if found.text is None or found.kept <= more_than:
            return False
        self.host.use(found.text)
        return True

    def open(self, prompt: Sequence[int], seq: int) -> Reuse:
        """Let a free sequence go on from what there is of a prompt; its own text is parked where
        that would be lost."""
        if self.sequences.is_lost(seq):
            self.sequences.clear(seq)
        mine, other = self.in_place([seq], prompt), self.elsewhere(seq, prompt)
        if mine.kept >= max(other.kept, self.host.find(prompt).kept):
            if self._worth(seq, self._useful(seq), mine.kept):
                self.park(seq)
            return self.sequences.go_back(prompt, seq)
        if self._worth(seq, self._useful(seq), 0):
            self.park(seq)
        self.sequences.clear(seq)
        other, far = self.elsewhere(seq, prompt), self.host.find(prompt)
        if far.kept > other.kept and self._recall(far, seq):
            return Reuse(far.kept, self._why_less(far))
        if not other.kept:
            return Reuse(0, "")
        found = self.sequences.adopt(other.at, seq, prompt[: other.common])
        self._use(other)
        return found

    def _recall(self, far: Found, seq: int) -> bool:
        """Bring a text in host memory into an empty sequence, on pages of parked ones where none
        else are free; whether there were enough."""
        text, start = far.text, far.kept
        assert text is not None
        state, memory = text.states.get(start, {}), self.sequences.memory
        self.host.use(text)
        while not memory.can_recall(start, state):
            if not self.drop():
                return False
        self.sequences.recall(seq, text.tokens[:start], text.pages, state)
        return True

    def _why_less(self, far: Found) -> str:
        if far.kept == far.common or far.text is None:
            return ""
        at = ", ".join(map(str, sorted(far.text.states)))
        why = f"in host memory are states at {at}" if at else "prompts go on at the grid"
        return f"{far.kept} of {far.common} common tokens are reused: {why}"

    def empty(self, seq: int) -> None:
        """Clear a free sequence; its text is parked."""
        if not self.sequences.is_lost(seq) and self._worth(seq, self._useful(seq), 0):
            self.park(seq)
        self.sequences.clear(seq)

    def park(self, seq: int) -> None:
        """Keep what a free sequence holds in a place behind the sequences."""
        sequences = self.sequences
        sequences.storage.remember(seq)
        tokens = sequences.tokens(seq)[: sequences.evaluated(seq)]
        # What differs from it only behind its last state adds nothing to it.
        for text in [t for t in self.texts if self._adds_little(t, tokens)]:
            self.forget(text)
        if len(self.texts) == MOST_PARKED:
            self.drop()
        taken = self.places
        first = sequences.n_seqs
        place = next(p for p in range(first, first + MOST_PARKED) if p not in taken)
        sequences.memory.park(seq, place)
        sequences.storage.prompt_states.share(seq, place, len(tokens))
        self._order([Text(place, tokens), *self.texts])

    def drop(self, but: Collection[int] = (), bounded: bool = False) -> bool:
        """Give up the text used longest ago, none in these places, once it is in host memory as far
        as there is some for it. Whether one was given up.

        bounded: others wait, so that no more is copied in a step than some pages."""
        text = next((t for t in reversed(self.texts) if t.place not in but), None)
        if text is None:
            return False
        self.copying = not self._copied(text, bounded)
        if not self.copying:
            self.forget(text)
        return not self.copying

    def _copied(self, text: Text, bounded: bool) -> bool:
        """Copy a text to host memory, or go on with it; whether no more is to be copied."""
        if not self.host.limit:
            return True
        if text.copy is None:
            useful = self._useful(text.place, len(text.tokens))
            text.copy = self.host.begin(text.place, text.tokens[:useful])
        if text.copy is None:
            return True
        self._allowed -= text.copy.advance(self._allowed if bounded else None)
        if text.copy.done:
            self.host.finish(text.copy)
        return text.copy.done

    def give_up(self, seq: int) -> None:
        """Clear a sequence whose pages are needed; with host memory its text is parked, to go there
        when its turn comes."""
        if self.host.limit:
            self.empty(seq)
        else:
            self.sequences.clear(seq)

    def forget(self, text: Text) -> None:
        """Give back what a text holds."""
        self._order([t for t in self.texts if t is not text])
        self.sequences.storage.prompt_states.cut(text.place, 0)
        self.sequences.memory.unpark(text.place)

    def sweep(self) -> None:
        """Empty places without a text, which an exception may have left full."""
        if self._able:
            first = self.sequences.n_seqs
            for place in {*range(first, first + MOST_PARKED)} - {*self.places}:
                self.sequences.storage.prompt_states.cut(place, 0)
                self.sequences.memory.unpark(place)
            self._order(self.texts)

    def _order(self, texts: list[Text]) -> None:
        self.texts = texts
        self.sequences.storage.prompt_states.order(self.places)

    def _use(self, source: Source) -> None:
        """A parked text was gone on from; where all that is of use is in the new one, it goes."""
        text = next((t for t in self.texts if t.place == source.at), None)
        if text is None:
            return
        if self._useful(text.place, len(text.tokens)) - source.common < SHORT:
            self.forget(text)
        else:
            self._order([text, *(t for t in self.texts if t is not text)])

    def _useful(self, at: int, length: int | None = None) -> int:
        """Up to where a text can be gone on from."""
        sequences = self.sequences
        if length is None and (
            sequences.memory.reach is None or sequences.storage.can_remember(at)
        ):
            return sequences.evaluated(at)
        if sequences.memory.reach is None:
            return length or 0
        return max(sequences.storage.prompt_states.positions(at), default=0)

    def _worth(self, seq: int, useful: int, kept: int) -> bool:
        """Whether a text is worth a place that loses all behind `kept` tokens else."""
        if not self._able or useful - kept < (SHORT if kept else WORTH_KEEPING):
            return False
        return not self.sequences.memory.pending(seq)

    def _adds_little(self, text: Text, tokens: list[int]) -> bool:
        common = common_length(text.tokens, tokens)
        return self._useful(text.place, len(text.tokens)) - common <= 0
