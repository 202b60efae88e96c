"""Cutting a text at the special tokens that it spells out."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial

# From a place in the text to the next occurrence of some token, or -1.
Find = Callable[[int], int]

_SPACES = " \t\n\v\f\r"
_PREFIX = 4
_FEW = 64


class Partition:
    """Finds special tokens in texts, the longest token (in UTF-8 bytes) first, each from left to
    right, never inside another.

    `before` and `after` hold the ids that swallow ASCII white space on that side."""

    def __init__(
        self,
        texts: Iterable[tuple[str, int]],
        before: frozenset[int] = frozenset(),
        after: frozenset[int] = frozenset(),
    ) -> None:
        self._ids = dict(texts)
        self._before, self._after = before, after
        # Thousands of tokens share few beginnings, so that most texts rule out nearly all of
        # them by a handful of searches.
        self._groups: dict[str, list[str]] = defaultdict(list)
        for text in self._ids:
            self._groups[text[:_PREFIX]].append(text)

    def split(self, text: str) -> Iterator[str | int]:
        """The text's fragments (never empty) and the ids of its special tokens, in order."""
        claims = self._claims(text)
        end = 0
        for start, stop, token in claims:
            if start > end:
                yield text[end:start]
            if token >= 0:
                yield token
            end = stop
        if end < len(text):
            yield text[end:]

    def _claims(self, text: str) -> list[tuple[int, int, int]]:
        """(start, stop, id) of each token and, with id -1, of swallowed space; sorted."""
        claims: list[tuple[int, int, int]] = []
        present = self._present(text)
        if not present:
            return claims
        taken = bytearray(len(text))
        for token in sorted(present, key=lambda t: (-len(t.encode()), self._ids[t])):
            self._claim(text, token, present[token], taken, claims)
        claims.sort()
        return claims

    def _present(self, text: str) -> dict[str, Find]:
        """The tokens that occur in the text, overlaps included, and how to find each."""
        present: dict[str, Find] = {}
        for prefix, members in self._groups.items():
            if prefix not in text:
                continue
            if len(members) <= _FEW:
                present |= {t: partial(text.find, t) for t in members if t in text}
            else:
                places = _places_of_many(text, prefix, members)
                present |= {token: partial(_next, at) for token, at in places.items()}
        return present

    def _claim(
        self,
        text: str,
        token: str,
        find: Find,
        taken: bytearray,
        claims: list[tuple[int, int, int]],
    ) -> None:
        number, size = self._ids[token], len(token)
        start = find(0)
        while start >= 0:
            stop = start + size
            inside = taken.find(1, start, stop)
            if inside >= 0:
                stop = taken.find(0, inside)
                if stop < 0:
                    return
            else:
                claims.append((start, stop, number))
                taken[start:stop] = b"\1" * size
                if number in self._before:
                    self._swallow(_space_before(text, taken, start), start, taken, claims)
                if number in self._after:
                    self._swallow(stop, _space_after(text, taken, stop), taken, claims)
            start = find(stop)

    @staticmethod
    def _swallow(
        start: int, stop: int, taken: bytearray, claims: list[tuple[int, int, int]]
    ) -> None:
        if start < stop:
            claims.append((start, stop, -1))
            taken[start:stop] = b"\1" * (stop - start)


def _places_of_many(text: str, prefix: str, members: list[str]) -> dict[str, list[int]]:
    """All occurrences, ascending, of tokens that begin with `prefix`: one pass for all tokens."""
    wanted = set(members)
    sizes = sorted({len(token) for token in members})
    places: dict[str, list[int]] = defaultdict(list)
    at = text.find(prefix)
    while at >= 0:
        for token in {text[at : at + size] for size in sizes} & wanted:
            places[token].append(at)
        at = text.find(prefix, at + 1)
    return places


def _next(places: list[int], at: int) -> int:
    index = bisect_left(places, at)
    return places[index] if index < len(places) else -1


def _space_before(text: str, taken: bytearray, stop: int) -> int:
    while stop > 0 and not taken[stop - 1] and text[stop - 1] in _SPACES:
        stop -= 1
    return stop


def _space_after(text: str, taken: bytearray, start: int) -> int:
    while start < len(text) and not taken[start] and text[start] in _SPACES:
        start += 1
    return start
