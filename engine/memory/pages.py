"""Pages of attention memory and how many sequences own each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...graph.errors import RequestError
from ...models.memories import PAGE

# Texts that may be parked beside the sequences: few enough to compare each with every prompt.
MOST_PARKED = 64


class Pages:
    """Pages 0 .. n - 1; one without owners is free, and free ones are used again.

    held: the pages owned from the start, each as often as it has owners. An exception inside a
    method may leave a page that is neither owned nor free; no page has too few owners."""

    def __init__(self, n: int, held: Sequence[int] | np.ndarray = ()) -> None:
        owners = np.bincount(np.asarray(held, np.intp), minlength=n)
        free = np.flatnonzero(owners == 0)
        self.n = n
        self._owners: list[int] = owners.tolist()
        # Owners beyond the first of each page; an exception may leave too many, never too few.
        self._more = len(held) - (n - len(free))
        self._free: list[int] = free[::-1].tolist()

    @property
    def free(self) -> int:
        """How many pages nobody owns."""
        return len(self._free)

    @property
    def any_shared(self) -> bool:
        """Whether a page may have several owners."""
        return self._more > 0

    def owners(self, page: int) -> int:
        """How many sequences hold this page."""
        return self._owners[page]

    def take(self) -> int:
        """A free page, now with one owner. Raises RequestError when there is none."""
        if not self._free:
            raise RequestError(f"none of {self.n} attention pages is free")
        self._owners[self._free[-1]] = 1
        return self._free.pop()

    def share(self, page: int) -> None:
        """One more owner of a page that has one. Raises RequestError for a free page."""
        self._require_owned(page)
        self._more += 1
        self._owners[page] += 1

    def give_back(self, page: int) -> None:
        """One owner less; without any the page is free. Raises RequestError for a free page."""
        self._require_owned(page)
        self._owners[page] -= 1
        if self._owners[page]:
            self._more -= 1
        else:
            self._free.append(page)

    def _require_owned(self, page: int) -> None:
        if self._owners[page] < 1:
            raise RequestError(f"attention page {page} should have an owner, it is free")


def window_pages(window: int, slack: int, max_pass: int, n_ctx: int) -> int:
    """The most pages that one sequence of PagedKV(window=window, slack=slack) holds at once, when
    at most max_pass tokens are pending at a time; never more than the whole context."""
    whole = -(-n_ctx // PAGE)
    if not window:
        return whole
    # With this many positions, the first may be the last of its page.
    positions = window - 1 + slack + max_pass
    return min(whole, (positions + PAGE - 2) // PAGE + 1)
