"""What the n-gram drafters share: a sequence's own copy of its text, and indexes that follow it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

from ..graph.errors import RequestError
from .drafter import Ask, Draft, Drafter, Setup

COMPARED = 32  # tokens compared to tell that a text is still the one that is known
WIDTH = array("i").itemsize


class Text:
    """A sequence's committed tokens, kept up to date from contexts that mostly just grow."""

    def __init__(self) -> None:
        self.tokens = array("i")

    def follow(self, context: Sequence[int], n: int) -> None:
        """The text is now the first n tokens of the context. Costs what is new; where the text
        became shorter or its last tokens differ, `cut` is told how many tokens still hold."""
        known = len(self.tokens)
        both = min(known, n)
        kept = both if self.begins_like(context, both) else 0
        if kept < known:
            del self.tokens[kept:]
            self.cut(kept)
        self.tokens.extend(context[kept:n])
        self.grow()

    def begins_like(self, context: Sequence[int], n: int) -> bool:
        """Whether the text has the context's first n tokens, as the last of them tell."""
        start = max(n - COMPARED, 0)
        return self.tokens[start:n] == array("i", context[start:n])

    def cut(self, kept: int) -> None:
        """Only the first `kept` tokens are left of what the index has seen."""

    def grow(self) -> None:
        """Take new tokens, if any, into the index."""

    def gram(self, n: int, newest: int) -> bytes:
        """The text's last n - 1 tokens and the newest, as bytes of i32."""
        last = self.tokens[max(len(self.tokens) - (n - 1), 0) :]
        last.append(newest)
        return last.tobytes()


class KeyedText(Text, ABC):
    """Enters every n-gram of the text under its bytes, once `after` tokens stand behind it. The
    one at position 0 is left out, as in the published algorithms."""

    def __init__(self, n: int, after: int) -> None:
        super().__init__()
        self.n, self.after = n, after
        self._next = 1

    def cut(self, kept: int) -> None:
        """Start over: an index of a shorter text need not be part of that of the longer one."""
        self._next = 1
        self.restart()

    def grow(self) -> None:
        """Enter the n-grams that have become complete, in the text's order."""
        first, stop = self._next, len(self.tokens) - self.n - self.after + 1
        if first >= stop:
            return
        raw, width = self.tokens[first : stop + self.n].tobytes(), WIDTH * self.n
        for at in range(first, stop):
            offset = WIDTH * (at - first)
            self.enter(raw[offset : offset + width], at)
        self._next = stop

    @abstractmethod
    def enter(self, key: bytes, at: int) -> None:
        """This n-gram begins at position `at`."""

    @abstractmethod
    def restart(self) -> None:
        """Empty the index."""


T = TypeVar("T", bound=Text)


class TextDrafter(Drafter, Generic[T]):
    """A drafter that holds one T per sequence and guesses from it. draft_max lowers a drafter's
    own bounds, None for none; shorter drafts than draft_min are dropped."""

    def __init__(self, *, draft_max: int | None = None, draft_min: int = 0) -> None:
        self._draft_max = None if draft_max is None else at_least("draft_max", draft_max, 1)
        self._draft_min = at_least("draft_min", draft_min, 0)
        self._texts: dict[int, T] = {}

    @classmethod
    def open(cls, setup: Setup) -> Drafter:
        """A drafter with the bounds that the session sets."""
        return cls(draft_max=setup.draft_max, draft_min=setup.draft_min)

    @abstractmethod
    def _new_text(self) -> T:
        """The state of a sequence without tokens."""

    @abstractmethod
    def _guess(self, text: T, newest: int, limit: int) -> list[int]:
        """A draft for this text and the newest token; what exceeds the limit is cut off."""

    def _lowered(self, bound: int) -> int:
        """A bound of the drafter's own under an explicit draft_max."""
        return bound if self._draft_max is None else min(bound, self._draft_max)

    def _follow(self, seq: int, context: Sequence[int], n: int) -> T:
        text = self._texts.get(seq)
        if text is None:
            text = self._texts[seq] = self._new_text()
        text.follow(context, n)
        return text

    def draft(self, asks: Sequence[Ask]) -> list[Draft]:
        """A guess for each ask, from its sequence's committed tokens."""
        drafts = []
        for ask in asks:
            text = self._follow(ask.seq, ask.context, len(ask.context) - 1)
            guess = self._guess(text, int(ask.context[-1]), ask.limit)[: ask.limit]
            drafts.append(Draft(guess if len(guess) >= self._draft_min else []))
        return drafts

    def observe(
        self, seq: int, tokens: Sequence[int], hidden: np.ndarray | None, context: Sequence[int]
    ) -> None:
        """Take the committed tokens into the sequence's index."""
        self._follow(seq, context, len(context))

    def clear(self, seq: int) -> None:
        """Forget a sequence."""
        self._texts.pop(seq, None)

    def forget(self) -> None:
        """Forget every sequence."""
        self._texts.clear()


class MapText(KeyedText):
    """A text whose continuations have caps: what was accepted of them last time, by the position
    of the continuation's key."""

    def __init__(self, n: int, after: int) -> None:
        super().__init__(n, after)
        self.caps: dict[int, int] = {}
        self.drafted_from: int | None = None

    def restart(self) -> None:
        """Empty the index, caps included."""
        self.caps.clear()
        self.drafted_from = None


M = TypeVar("M", bound=MapText)


class MapDrafter(TextDrafter[M]):
    """What both n-gram maps have in common: when a text is long enough, what follows a key, and
    caps learned from acceptance."""

    def __init__(
        self, *, n: int = 12, m: int = 48, draft_max: int | None = None, draft_min: int = 0
    ) -> None:
        super().__init__(draft_max=draft_max, draft_min=draft_min)
        self.n = at_least("n", n, 1)
        self.m = self._lowered(at_least("m", m, 1))

    @abstractmethod
    def _choose(self, text: M, key: bytes) -> int | None:
        """The position of an n-gram like the key whose continuation is to be drafted."""

    def _guess(self, text: M, newest: int, limit: int) -> list[int]:
        text.drafted_from = None
        if len(text.tokens) < 2 * self.n + self.m:
            return []
        at = self._choose(text, text.gram(self.n, newest))
        if at is None:
            return []
        text.drafted_from = at
        start = at + self.n
        return text.tokens[start : start + text.caps.get(at, self.m)].tolist()

    def accept(self, seq: int, n_drafted: int, n_accepted: int) -> None:
        """Cap the continuation at what was accepted. A draft accepted whole proves no bound: it
        was either capped to this length already or cut short by the caller."""
        text = self._texts.get(seq)
        if text is None or text.drafted_from is None:
            return
        if n_accepted < n_drafted:
            text.caps[text.drafted_from] = n_accepted
        text.drafted_from = None


def at_least(name: str, value: int, least: int) -> int:
    """The value, if it is an integer of at least `least`. Raises RequestError."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise RequestError(f"{name} should be an integer of at least {least}, got {value!r}")
    return value
