"""Drafts the continuation of the text's last n tokens that clearly outnumbers the others."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from .drafter import register_drafter
from .ngrams import MapDrafter, MapText, at_least

MAX_VALUES = 4  # distinct continuations kept of one key


@dataclass(slots=True)
class Values:
    """What followed a key that occurred more than once. hits: its occurrences, those included
    whose continuation found no room; counts: occurrences by the first key's position."""

    hits: int
    counts: dict[int, int]


class Continuations(MapText):
    """The continuations of each n-gram: the key's position alone while it occurred once."""

    def __init__(self, n: int, m: int) -> None:
        super().__init__(n, after=m)
        self.values: dict[bytes, int | Values] = {}

    def enter(self, key: bytes, at: int) -> None:
        """Count the continuation under the first key that it followed."""
        values = self.values.setdefault(key, at)
        if isinstance(values, int):
            if values == at:
                return
            values = self.values[key] = Values(1, {values: 1})
        values.hits += 1
        value = self._value(at)
        for first in values.counts:
            if self._value(first) == value:
                values.counts[first] += 1
                return
        if len(values.counts) < MAX_VALUES:
            values.counts[at] = 1

    def restart(self) -> None:
        """Empty the index."""
        super().restart()
        self.values.clear()

    def _value(self, at: int) -> array[int]:
        return self.tokens[at + self.n : at + self.n + self.after]


@register_drafter
class NgramMapK4V(MapDrafter[Continuations]):
    """Asks for 2n + m committed tokens, a key that occurred min_hits times before, and a
    continuation at least twice as frequent as the others kept (at most four) together. Drafts
    no more of a continuation than was accepted of it the last time.

    n: tokens of the key, the newest included; m: tokens of a continuation, lowered by draft_max.
    Raises RequestError for values out of range."""

    name, priority, default_max = "ngram-map-k4v", 30, 48

    def __init__(
        self,
        *,
        n: int = 12,
        m: int = 48,
        min_hits: int = 1,
        draft_max: int | None = None,
        draft_min: int = 0,
    ) -> None:
        super().__init__(n=n, m=m, draft_max=draft_max, draft_min=draft_min)
        self.min_hits = at_least("min_hits", min_hits, 1)

    def _new_text(self) -> Continuations:
        return Continuations(self.n, self.m)

    def _choose(self, text: Continuations, key: bytes) -> int | None:
        values = text.values.get(key)
        if values is None:
            return None
        if isinstance(values, int):
            return values if self.min_hits == 1 else None
        first = max(values.counts, key=values.counts.__getitem__)
        most = values.counts[first]
        if values.hits < self.min_hits or most < 2 * (sum(values.counts.values()) - most):
            return None
        return first
