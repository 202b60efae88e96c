"""Greedy decoding that runs ahead: each pass picks its token on the device and the next one starts
from there, so the host reads a pass late and the device never waits for it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import numpy as np

from ..backends import BoundPlan
from ..graph.errors import BackendError
from ..models.step import NEXT_TOKEN, StepShape
from .bound_step import BoundStep, Part
from .chooser import Chooser
from .decoding import PlainDecoding
from .memory import Reservation
from .session import Session

SHAPE = StepShape(1, 1, 1)
UNKNOWN = -1  # a token that the device has picked and the host has not read


class AheadDecoding(PlainDecoding):
    """One sequence. A pass that turns out to be one too many is forgotten again, so the session
    must be able to go back by a token: `can_run_ahead`."""

    def __init__(self, session: Session, seq: int = 0) -> None:
        super().__init__(session, seq)
        # Two, because a pass's inputs stay as they are until it is over.
        self._steps: list[tuple[BoundPlan, BoundStep]] = []

    def prepare(self, n_tokens: int) -> None:
        """Compile the passes, too."""
        super().prepare(n_tokens)
        if self._steps:
            return
        session = self.session
        plan = session.model.plan(SHAPE, session.capacity, "step", "ahead")
        if NEXT_TOKEN not in session.pools.specs:
            session.pools.add({NEXT_TOKEN: plan.states[NEXT_TOKEN]})
        for _ in range(2):
            bound = plan.bind(session.model.weights, session.pools)
            self._steps.append((bound, session._held.step(bound)))

    def round(self, token: int, chooser: Chooser, left: int | None) -> Iterator[int]:
        """All tokens that follow, until the iterator is closed or the context is full."""
        if not chooser.plain_greedy:
            yield from super().round(token, chooser, left)
            return
        self.session.pools.write(NEXT_TOKEN, 0, np.array([token], np.float32))
        started = 0  # passes whose token is not read yet
        at = 0
        try:
            self._start(at, token)
            started = 1
            while started:
                if self._room(left):
                    self._start(1 - at, UNKNOWN)
                    started += 1
                found = self._finish(at)
                started -= 1
                if started:
                    self._read(found)
                chooser.accept(found)
                left = None if left is None else left - 1
                at = 1 - at
                yield found
        finally:
            self._forget(at, started)

    def _room(self, left: int | None) -> bool:
        session = self.session
        return session.length(self.seq) < session.n_ctx and (left is None or left > 1)

    def _start(self, which: int, token: int) -> None:
        """Put a pass on the device; its token counts as one that stays."""
        session, seq = self.session, self.seq
        bound, step = self._steps[which]
        with session._exclusive:
            first = session.memory.length(seq)
            session.memory.reserve([Reservation(seq, 1)])
            step.fill([Part(seq, (0,), 0, first)], 1)
            bound.start()
            session.memory.commit(seq, 1)
            session._tokens[seq].append(token)

    def _finish(self, which: int) -> int:
        bound, _ = self._steps[which]
        bound.finish()
        largest = bound.outputs["largest"].item()
        if not math.isfinite(largest):
            raise BackendError(f"the logits' largest value is {largest}; the model is damaged")
        return bound.outputs["token"].item()

    def _read(self, token: int) -> None:
        """Note the token that the pass in flight started from."""
        self.session._tokens[self.seq][-1] = token

    def _forget(self, at: int, started: int) -> None:
        """Wait for what still runs, and forget the tokens of these passes, which nobody took."""
        for which in (at, 1 - at)[:started]:
            # What a pass that is not wanted found wrong is of no interest.
            with contextlib.suppress(BackendError):
                self._finish(which)
        session, seq = self.session, self.seq
        if started:
            session.remove(seq, session.length(seq) - started)


def can_run_ahead(session: Session) -> bool:
    """Whether a session's passes run on a device of their own, and it can go back by a token
    without running others again."""
    recurrent = session._held.recurrent
    able = recurrent is None or (recurrent.window >= 1 and not recurrent.reruns)
    return able and session.model.backend.runs_ahead and session.program == "trunk"
