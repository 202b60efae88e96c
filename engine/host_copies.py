"""Texts on their way to host memory, a page or a state at a time, so that whoever evaluates
meanwhile waits for a piece and not for all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..backends.base import KeptParts
from ..graph.errors import BackendError

Page = Mapping[str, np.ndarray]


class HostCopy:
    """Copies of the pages of a text, and of its states by position.

    failed: there was no memory for one, and those that were made are gone."""

    def __init__(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        n_pages: int,
        page: Callable[[int], tuple[Page, int]],
        state: Callable[[int], tuple[KeptParts, int]],
    ) -> None:
        """page, state: make the copy of the i-th page, and of the state at a position, and say how
        many bytes that took."""
        self.tokens = list(tokens)
        self.pages: list[Page] = []
        self.states: dict[int, KeptParts] = {}
        self.failed = False
        self._positions, self._n_pages = list(positions), n_pages
        self._page, self._state = page, state

    @property
    def done(self) -> bool:
        """Whether all is copied."""
        missing = len(self.pages) < self._n_pages or len(self.states) < len(self._positions)
        return self.failed or not missing

    def advance(self, most: int | None = None) -> int:
        """Go on until so many bytes are copied, None for all; how many were."""
        copied = 0
        try:
            while not self.done and (most is None or copied < most):
                copied += self._next()
        except (MemoryError, BackendError):
            self.failed = True
            self.pages, self.states = [], {}
        return copied

    def _next(self) -> int:
        position = next((at for at in self._positions if at not in self.states), None)
        if position is None:
            page, size = self._page(len(self.pages))
            self.pages.append(page)
        else:
            self.states[position], size = self._state(position)
        return size
