"""The token history that penalties look at: counts kept up to date, never counted again."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np


class TokenWindow:
    """How often each token occurs among the last `limit` tokens (-1 = all of them, 0 = none).

    Distinct tokens sit in dense slots, so that a penalty step reads two arrays whatever the
    length of the history. Every token pushed costs O(1); a copy costs O(distinct tokens)."""

    __slots__ = ("_counts", "_ids", "_limit", "_recent", "_slots")

    def __init__(self, limit: int, tokens: Sequence[int] | np.ndarray) -> None:
        self._limit = limit
        kept = np.asarray(tokens if limit else (), np.int64)
        if limit >= 0:
            kept = kept[max(0, kept.size - limit) :]
        # Sorting nothing takes longer than all the rest of a sampler.
        ids, counts = np.unique(kept, return_counts=True) if kept.size else (kept, kept)
        self._ids, self._counts = ids, counts.astype(np.int64)
        self._slots = {token: slot for slot, token in enumerate(self._ids.tolist())}
        self._recent: deque[int] | None = deque(kept.tolist()) if limit > 0 else None

    @property
    def ids(self) -> np.ndarray:
        """The distinct tokens, i64 [n], in no particular order; a view, valid until `push`."""
        return self._ids[: len(self._slots)]

    @property
    def counts(self) -> np.ndarray:
        """How often each of `ids` occurs, i64 [n], each >= 1; a view, valid until `push`."""
        return self._counts[: len(self._slots)]

    def count(self, token: int) -> int:
        """How often a token occurs."""
        slot = self._slots.get(token)
        return 0 if slot is None else int(self._counts[slot])

    def push(self, token: int) -> None:
        """Append one token; the oldest leaves when the window is full."""
        if self._limit == 0:
            return
        if self._recent is not None:
            if len(self._recent) == self._limit:
                self._drop(self._recent.popleft())
            self._recent.append(token)
        slot = self._slots.get(token)
        if slot is None:
            slot = self._append(token)
        self._counts[slot] += 1

    def copy(self) -> TokenWindow:
        """An independent window with the same content."""
        other = object.__new__(TokenWindow)
        other._limit = self._limit
        other._ids = self._ids.copy()
        other._counts = self._counts.copy()
        other._slots = self._slots.copy()
        other._recent = None if self._recent is None else self._recent.copy()
        return other

    def _append(self, token: int) -> int:
        slot = len(self._slots)
        if slot == self._ids.size:
            spare = np.zeros(max(16, slot), np.int64)
            self._ids = np.concatenate((self._ids, spare))
            self._counts = np.concatenate((self._counts, spare))
        self._slots[token] = slot
        self._ids[slot], self._counts[slot] = token, 0
        return slot

    def _drop(self, token: int) -> None:
        slot = self._slots[token]
        self._counts[slot] -= 1
        if self._counts[slot] > 0:
            return
        del self._slots[token]
        last = len(self._slots)
        if slot != last:
            moved = int(self._ids[last])
            self._slots[moved] = slot
            self._ids[slot], self._counts[slot] = moved, self._counts[last]
