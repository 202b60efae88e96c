"""Passes that pick their tokens, as they are filled, started and waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..backends import BoundPlan
from ..graph.errors import BackendError
from .bound_step import BoundStep, Part
from .draws import Draws
from .request import Request


@dataclass(slots=True, eq=False)
class Flight:
    """A pass that was started: its plan, the request of each row, and what it failed with."""

    plan: PickingPlan
    requests: list[Request]
    error: BackendError | None = None

    def wait(self) -> None:
        """Until it is over. Raises BackendError where it failed, each time."""
        if self.error is None:
            try:
                self.plan.bound.finish()
            except BackendError as error:
                self.error = error
        if self.error is not None:
            raise self.error


class PickingPlan:
    """A bound pass of some sequences that picks their tokens."""

    def __init__(self, bound: BoundPlan, step: BoundStep) -> None:
        self.bound, self.step = bound, step
        inputs = bound.inputs
        self._read, self._write = inputs["token_slots"], inputs["next_slots"]
        self._draws = Draws(inputs)
        self._seqs: list[int] = []  # whose slots they hold

    def fill(self, requests: Sequence[Request], parts: Sequence[Part]) -> None:
        """The data of a pass."""
        n = len(parts)
        self.step.fill(parts, n)
        seqs = [part.seq for part in parts]
        if seqs != self._seqs:
            self._choose_slots(seqs)
        if self._draws.wanted:
            positions = [part.first + 1 for part in parts]
            self._draws.fill([(request.draw, 1) for request in requests], positions)

    def _choose_slots(self, seqs: list[int]) -> None:
        """Where tokens are read and written; mostly the same from pass to pass."""
        n = len(seqs)
        self._seqs = []  # until all of it is written, should an exception break it off
        self._read[:n], self._write[:n] = seqs, seqs
        self._read[n:], self._write[n:] = 0, -1
        self._seqs = seqs
