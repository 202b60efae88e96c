"""Texts in host memory that have given up their pages: prompts go on from them all the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..backends.base import KeptParts
from ..models.memories import PAGE
from .host_copies import HostCopy, Page
from .items import common_length
from .memory.pages import MOST_PARKED
from .prompt_states import bytes_of
from .prompts import WORTH_KEEPING
from .session_memory import SessionMemory

# Of a text's states the newest go with it: one behind the last answer, one in front of it, from
# which a prompt goes on that parts from the text there, and one before that.
STATES = 3


@dataclass(frozen=True, eq=False)
class HostText:
    """pages: the rows of each page of attention memory; states: kept states by position."""

    tokens: list[int]
    pages: list[Page]
    states: dict[int, KeptParts]


# Texts, each with how many tokens another begins with, too.
Commons = Sequence[tuple[int, HostText]]


class Found(NamedTuple):
    """A text, and how many tokens of a prompt can go on from it."""

    kept: int = 0
    common: int = 0
    text: HostText | None = None


class HostTexts:
    """Texts of at most `limit` bytes in all, the one used last first; a page that several begin
    with counts once, and is copied once. copied_bytes: of all copies so far."""

    def __init__(self, storage: SessionMemory, limit: int) -> None:
        self._storage, self.limit = storage, limit
        self.texts: list[HostText] = []
        self.copied_bytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all texts."""
        pages = {id(page): page for text in self.texts for page in text.pages}
        states = {id(state): state for text in self.texts for state in text.states.values()}
        rows = sum(array.nbytes for page in pages.values() for array in page.values())
        return rows + sum(map(bytes_of, states.values()))

    def find(self, prompt: Sequence[int]) -> Found:
        """The text that a prompt can go on from with the most tokens."""
        best = Found()
        for text in self.texts:
            common = common_length(text.tokens, prompt, len(prompt) - 1)
            if common > best.kept:
                kept = self._reachable(text, common)
                best = max(best, Found(kept, common, text), key=lambda found: found.kept)
        return best

    def use(self, text: HostText) -> None:
        """It goes last."""
        self.texts = [text, *(t for t in self.texts if t is not text)]

    def begin(self, at: int, tokens: Sequence[int]) -> HostCopy | None:
        """A copy of a text, as far as prompts can go on from it, that a sequence or a place behind
        them holds while it is made; None where none is worth it."""
        states = dict(list(self._storage.prompt_states.before(at, len(tokens)))[:STATES])
        # What does not fit would be copied to be dropped again.
        if len(tokens) < WORTH_KEEPING or self._bytes(len(tokens), states) > self.limit:
            return None
        commons = [(common_length(text.tokens, tokens), text) for text in self.texts]
        return HostCopy(
            tokens,
            list(states),
            -(-len(tokens) // PAGE),
            lambda i: self._page(at, i, len(tokens), commons),
            lambda position: self._state(position, states[position], commons),
        )

    def finish(self, copy: HostCopy) -> None:
        """Take in a text that is copied. What has been here longest without use goes where the
        limit asks for it."""
        if copy.failed:
            return
        text = HostText(copy.tokens, copy.pages, copy.states)
        commons = [(common_length(other.tokens, text.tokens), other) for other in self.texts]
        others = [t for common, t in commons if not self._adds_nothing(t, common, text)]
        self.texts = [text, *others][:MOST_PARKED]
        while self.nbytes > self.limit:
            self.texts = self.texts[:-1]

    def _bytes(self, length: int, states: Mapping[int, KeptParts]) -> int:
        """What a text would take by itself."""
        pages = -(-length // PAGE) * self._storage.memory.page_bytes
        return pages + sum(map(bytes_of, states.values()))

    def _page(self, at: int, i: int, length: int, commons: Commons) -> tuple[Page, int]:
        """A page of the text at hand, copied unless a text that begins alike has it."""
        start, end = i * PAGE, (i + 1) * PAGE
        found = next((text.pages[i] for common, text in commons if common >= end), None)
        if found is not None:
            return found, 0
        page = self._storage.memory.read_page(at, i, min(PAGE, length - start))
        return page, self._count(sum(array.nbytes for array in page.values()))

    def _state(self, position: int, state: KeptParts, commons: Commons) -> tuple[KeptParts, int]:
        """A state of it, likewise."""
        same = (t.states[position] for n, t in commons if n >= position and position in t.states)
        found = next(same, None)
        if found is not None:
            return found, 0
        copied = self._storage.to_host(state)
        return copied, self._count(bytes_of(copied))

    def _count(self, size: int) -> int:
        self.copied_bytes += size
        return size

    def _reachable(self, text: HostText, common: int) -> int:
        """From how many of its leading `common` tokens a sequence can go on."""
        if self._storage.memory.reach is None:
            step = self._storage.grid or 1
            return common // step * step
        return max((at for at in text.states if at <= common), default=0)

    def _adds_nothing(self, text: HostText, common: int, new: HostText) -> bool:
        """Whether all that a text with so many tokens in common can be gone on from is in the new
        one, too."""
        if self._storage.memory.reach is None:
            return common == len(text.tokens)
        return all(at <= common and at in new.states for at in text.states)
