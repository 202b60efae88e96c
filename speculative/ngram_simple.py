"""Drafts what followed the most recent place where the text's last n tokens stood before."""

from __future__ import annotations

from .drafter import register_drafter
from .ngrams import KeyedText, TextDrafter, at_least


class LastPlaces(KeyedText):
    """The most recent position of each n-gram that has at least one token behind it."""

    def __init__(self, n: int) -> None:
        super().__init__(n, after=1)
        self.places: dict[bytes, int] = {}

    def enter(self, key: bytes, at: int) -> None:
        """Keep the later position."""
        self.places[key] = at

    def restart(self) -> None:
        """Empty the index."""
        self.places.clear()


@register_drafter
class NgramSimple(TextDrafter[LastPlaces]):
    """Asks for more than n + m + 1 committed tokens, and gives up where fewer than n of them
    stand behind the place found.

    n: tokens of the key, the newest included; m: most tokens of a draft. draft_max lowers m and
    the n tokens that have to stand behind. Raises RequestError for values out of range."""

    name, priority, default_max = "ngram-simple", 10, 48

    def __init__(
        self, *, n: int = 12, m: int = 48, draft_max: int | None = None, draft_min: int = 0
    ) -> None:
        super().__init__(draft_max=draft_max, draft_min=draft_min)
        self.n = at_least("n", n, 1)
        self.m = self._lowered(at_least("m", m, 1))
        self.n_min = self._lowered(n)

    def _new_text(self) -> LastPlaces:
        return LastPlaces(self.n)

    def _guess(self, text: LastPlaces, newest: int, limit: int) -> list[int]:
        length = len(text.tokens)
        if length <= self.n + self.m + 1:
            return []
        at = text.places.get(text.gram(self.n, newest))
        if at is None or length - (at + self.n) < self.n_min:
            return []
        return text.tokens[at + self.n : at + self.n + self.m].tolist()
