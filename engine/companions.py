"""Prompts that wait a moment for others to share their pass.

Up to some rows a card's pass over prompts takes hardly longer for several of them, and whoever
decodes stands still meanwhile. Requests that end together are mostly followed by as many, which
come one after another: a pass for the first of them alone would be wasted."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

from .prompts import LEAST_ROWS
from .request import Request

# Of the time of a short pass: how long a prompt waits at most while others decode, and how long
# the next one may take to come while nobody does.
WAIT, GAP = 0.5, 0.25
SOON = 2  # tokens that a request has left which is about to end
RISE = 0.1  # share of a longer time in what a short pass is taken to take
MOST_ENDS = 256


class Companions:
    """What is known of prompts to come. `came` may be called from any thread, the rest by whoever
    steps the engine."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # When requests ended that no other has followed yet.
        self._ends: deque[float] = deque(maxlen=MOST_ENDS)
        self._pass_s = 0.0  # of a pass over prompts of a few rows
        self._since: float | None = None  # when the first of those that wait was noticed

    def came(self) -> None:
        """A request was submitted."""
        with suppress(IndexError):
            self._ends.popleft()

    def ended(self, n: int) -> None:
        """So many requests have ended by themselves."""
        self._ends.extend([self._clock()] * n)

    def note_pass(self, rows: int, seconds: float) -> None:
        """A pass over prompts of so many tokens took so long."""
        self._since = None
        if rows > LEAST_ROWS:
            return
        old = self._pass_s or seconds
        self._pass_s = seconds if seconds < old else old + RISE * min(seconds - old, old)

    @property
    def gap(self) -> float:
        """Seconds in which another prompt comes, if there is one to be waited for."""
        return GAP * self._pass_s

    def worth_waiting(self, decoding: Iterable[Request]) -> bool:
        """Whether prompts that wait, and leave room in their pass, should go on waiting. decoding:
        requests that decode meanwhile."""
        now, going = self._clock(), list(decoding)
        if self._since is None:
            self._since = now
        most = self._pass_s * (WAIT if going else 1)
        if now - self._since >= most:
            return False
        while self._ends and now - self._ends[0] > self._pass_s:
            self.came()  # that place stays empty
        return bool(self._ends) or any(r.left is not None and r.left <= SOON for r in going)
