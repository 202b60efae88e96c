"""Drafts token by token what most often followed the last four, three, two or one tokens."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from .drafter import Drafter, Setup, register_drafter
from .ngram_counts import MAX_N, Counts, Followers, check_place
from .ngrams import WIDTH, Text, TextDrafter, at_least

STATIC_N = 2
# Least number of observations, and least share of the chosen token in them, by n-gram size 1..4.
LAX = ((2, 66), (2, 50), (1, 50), (1, 50))
STRICT = ((4, 75), (3, 66), (2, 66), (2, 66))
STATIC_WEIGHT = 100


class CountedText(Text):
    """A text and the counts of its own n-grams."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counts()
        self._counted = 0

    def cut(self, kept: int) -> None:
        """Count anew."""
        self.counts.clear()
        self._counted = 0

    def grow(self) -> None:
        """Count the new tokens."""
        self.counts.add_text(self.tokens, self._counted)
        self._counted = len(self.tokens)


@register_drafter
class NgramCache(TextDrafter[CountedText]):
    """Each token is sought in the sequence's own counts, then under stricter thresholds in the
    loaded ones, the longest n-gram first; a loaded static file of pairs weighs the candidates,
    and is asked alone where the others have none.

    m: most tokens of a draft, lowered by draft_max; n_vocab: files with tokens from there on are
    refused. Raises RequestError for values out of range."""

    name, priority, default_max = "ngram-cache", 50, 8

    def __init__(
        self,
        *,
        m: int = 8,
        n_vocab: int | None = None,
        draft_max: int | None = None,
        draft_min: int = 0,
    ) -> None:
        super().__init__(draft_max=draft_max, draft_min=draft_min)
        self.m = self._lowered(at_least("m", m, 1))
        self._n_vocab = None if n_vocab is None else at_least("n_vocab", n_vocab, 1)
        self._dynamic, self._static = Counts(), Counts()
        self.kept_in: Path | None = None  # the file that `close` writes

    @classmethod
    def open(cls, setup: Setup) -> Drafter:
        """A drafter with the bounds that the session sets, for its model's tokens."""
        model = setup.target.model
        n_vocab = model.tokenizer.n_vocab or model.n_vocab
        drafter = cls(n_vocab=n_vocab, draft_max=setup.draft_max, draft_min=setup.draft_min)
        if setup.lookup_static:
            drafter.load(setup.lookup_static, static=True)
        drafter.kept_in = setup.lookup_dynamic
        if drafter.kept_in:
            check_place(drafter.kept_in)
            if drafter.kept_in.exists():
                drafter.load(drafter.kept_in)
        return drafter

    def load(self, path: str | os.PathLike[str], *, static: bool = False) -> None:
        """Add a file's counts to those that all sequences share: n-grams of one to four tokens,
        of two for a static file. Raises RequestError, with nothing added, for an unreadable or
        damaged one."""
        sizes = range(STATIC_N, STATIC_N + 1) if static else range(1, MAX_N + 1)
        loaded = Counts.read(path, sizes, self._n_vocab)
        (self._static if static else self._dynamic).merge(loaded)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the loaded counts (not the static ones) together with those of the sequences
        that live now; what a cleared sequence taught is gone. Raises RequestError."""
        counts = Counts()
        for source in (self._dynamic, *(text.counts for text in self._texts.values())):
            counts.merge(source)
        counts.write(path)

    def close(self) -> None:
        """Save to the file that counts are kept in, if there is one."""
        if self.kept_in:
            self.save(self.kept_in)

    def forget(self) -> None:
        """Forget every sequence and all loaded counts."""
        super().forget()
        self._dynamic.clear()
        self._static.clear()

    def _new_text(self) -> CountedText:
        return CountedText()

    def _guess(self, text: CountedText, newest: int, limit: int) -> list[int]:
        last = text.gram(MAX_N, newest)
        draft: list[int] = []
        while len(draft) < min(self.m, limit) and len(last) >= WIDTH * STATIC_N:
            token = self._next(text.counts, last)
            if token is None:
                break
            draft.append(token)
            last = (last + token.to_bytes(WIDTH, sys.byteorder))[-WIDTH * MAX_N :]
        return draft

    def _next(self, own: Counts, last: bytes) -> int | None:
        static = self._static.get(last[-WIDTH * STATIC_N :])
        for counts, thresholds in ((own, LAX), (self._dynamic, STRICT)):
            token = _longest(counts, last, static, thresholds)
            if token is not None:
                return token
        return None if static is None else _pick(static, None, *LAX[STATIC_N - 1])


def _longest(
    counts: Counts, last: bytes, static: Followers | None, thresholds: tuple[tuple[int, int], ...]
) -> int | None:
    """The token behind the longest of the n-grams ending here that makes a good case for one."""
    for n in range(len(last) // WIDTH, 0, -1):
        found = counts.get(last[-WIDTH * n :])
        token = None if found is None else _pick(found, static, *thresholds[n - 1])
        if token is not None:
            return token
    return None


def _pick(found: Followers, static: Followers | None, samples: int, percent: int) -> int | None:
    """The heaviest token, if enough was seen and the token is enough of it."""
    needed = percent * found.total
    if found.total < samples or 100 * found.counts[found.best] < needed:
        return None
    token = found.best if static is None else _heaviest(found, static)
    return token if 100 * found.counts[token] >= needed else None


def _heaviest(found: Followers, static: Followers) -> int:
    """The token of greatest count times static weight; of equals the most frequent, as no other
    can be enough of the total then."""

    def weight(token: int) -> int:
        factor = STATIC_WEIGHT * static.counts[token] if token in static.counts else 1
        return found.counts[token] * factor

    few, many = sorted((found.counts, static.counts), key=len)
    return max((found.best, *(t for t in few if t in many)), key=weight)
