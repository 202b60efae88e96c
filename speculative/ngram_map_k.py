"""Drafts what followed the first place of the text's last n tokens, no more of it than was
accepted the last time."""

from __future__ import annotations

from .drafter import register_drafter
from .ngrams import MapDrafter, MapText


class FirstPlaces(MapText):
    """The first position of each n-gram."""

    def __init__(self, n: int, m: int) -> None:
        super().__init__(n, after=m)
        self.places: dict[bytes, int] = {}

    def enter(self, key: bytes, at: int) -> None:
        """Keep the earlier position."""
        self.places.setdefault(key, at)

    def restart(self) -> None:
        """Empty the index."""
        super().restart()
        self.places.clear()


@register_drafter
class NgramMapK(MapDrafter[FirstPlaces]):
    """Asks for 2n + m committed tokens. A key whose draft was rejected whole drafts nothing more
    until the sequence begins anew.

    n: tokens of the key, the newest included; m: tokens behind a key, the most that are drafted,
    lowered by draft_max. Raises RequestError for values out of range."""

    name, priority, default_max = "ngram-map-k", 20, 48

    def _new_text(self) -> FirstPlaces:
        return FirstPlaces(self.n, self.m)

    def _choose(self, text: FirstPlaces, key: bytes) -> int | None:
        return text.places.get(key)
