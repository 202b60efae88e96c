"""Decoding that runs ahead: each pass picks its token on the device and the next one starts from
there, so the host reads a pass late and the device never waits for it."""

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
from .sampler import DeviceDraw
from .session import Session

UNKNOWN = -1  # a token that the device has picked and the host has not read


class AheadPass:
    """A bound pass that picks its token, with its input buffers at hand."""

    def __init__(self, bound: BoundPlan, step: BoundStep) -> None:
        self.bound, self.step = bound, step
        self._position = bound.inputs.get("draw_position")

    def ask(self, draw: DeviceDraw) -> None:
        """How the next passes choose."""
        if self._position is None:
            return
        inputs = self.bound.inputs
        for name in ("top_k", "temperature", "top_p", "min_p"):
            inputs[name][...] = getattr(draw, name)
        inputs["seed"].view(np.uint32)[...] = draw.seed & 0xFFFFFFFF, draw.seed >> 32

    def start(self, seq: int, first: int) -> None:
        """Put it on the device; it evaluates position `first`."""
        self.step.fill([Part(seq, (UNKNOWN,), 0, first)], 1)
        for name in ("token_slots", "next_slots"):
            self.bound.inputs[name][...] = seq
        if self._position is not None:
            self._position[...] = first + 1
        self.bound.start()

    @property
    def token(self) -> int:
        """What it picked, once it is finished. Raises BackendError where the logits are wrong."""
        largest = self.bound.outputs["largest"].item(0)
        if not math.isfinite(largest):
            raise BackendError(f"the logits' largest value is {largest}; the model is damaged")
        return self.bound.outputs["token"].item()


class AheadDecoding(PlainDecoding):
    """One sequence. A pass that turns out to be one too many is forgotten again, so the session
    must be able to go back by a token: `can_run_ahead`. While a round is under way the session
    holds the newest token, too."""

    def __init__(self, session: Session, seq: int = 0) -> None:
        super().__init__(session, seq)
        # By the number of candidates; two, because a pass's inputs stay until it is over.
        self._passes: dict[int, tuple[AheadPass, AheadPass]] = {}

    def prepare(self, n_tokens: int, chooser: Chooser) -> None:
        """Compile the passes, too."""
        super().prepare(n_tokens, chooser)
        if chooser.device_draw is not None:
            self._pair(chooser.device_draw)

    def round(self, token: int, chooser: Chooser, left: int | None) -> Iterator[int]:
        """All tokens that follow, until the iterator is closed or the context is full."""
        draw = chooser.device_draw
        if draw is None:
            yield from super().round(token, chooser, left)
            return
        this, other = self._pair(draw)
        self._enter(token)
        flying: list[AheadPass] = []  # started and not finished, oldest first
        try:
            self._start(this, flying, token)
            while flying:
                if self._room(left):
                    self._start(other, flying, UNKNOWN)
                self._finish(flying)
                found = this.token
                if flying:
                    # What the pass in flight started from.
                    self.session._tokens[self.seq][-1] = found
                chooser.accept(found)
                left = None if left is None else left - 1
                this, other = other, this
                yield found
        finally:
            self._forget(flying)

    def _pair(self, draw: DeviceDraw) -> tuple[AheadPass, AheadPass]:
        """The passes for a draw, compiled and bound when first asked for."""
        pair = self._passes.get(draw.candidates)
        if pair is None:
            session = self.session
            shape = StepShape(1, 1, 1, candidates=draw.candidates)
            plan = session.model.plan(shape, session.capacity, "step", "ahead")
            if NEXT_TOKEN not in session.pools.specs:
                session.pools.add({NEXT_TOKEN: plan.states[NEXT_TOKEN]})
            bound = [plan.bind(session.model.weights, session.pools) for _ in range(2)]
            one, two = (AheadPass(b, session._held.step(b)) for b in bound)
            pair = self._passes[draw.candidates] = one, two
        for each in pair:
            each.ask(draw)
        return pair

    def _enter(self, token: int) -> None:
        """Check what a decode step checks, complete what is due, hand the token to the device."""
        session, seq = self.session, self.seq
        with session._exclusive:
            session._check([(seq, (token,))], [1], "last")
            session._catch_up(seq)
            session.pools.write(NEXT_TOKEN, seq, np.array([token], np.float32))

    def _room(self, left: int | None) -> bool:
        session = self.session
        return session.length(self.seq) < session.n_ctx and (left is None or left > 1)

    def _start(self, which: AheadPass, flying: list[AheadPass], token: int) -> None:
        """Put a pass on the device; its token counts as one that stays."""
        session, seq = self.session, self.seq
        with session._exclusive:
            first = session.memory.length(seq)
            session.memory.reserve([Reservation(seq, 1)])
            try:
                which.start(seq, first)
            except BaseException:
                self._lose(flying)
                raise
            session.memory.commit(seq, 1)
            session._tokens[seq].append(token)
            flying.append(which)

    def _finish(self, flying: list[AheadPass]) -> None:
        """Wait for the oldest pass."""
        try:
            flying[0].bound.finish()
        except BaseException:
            self._lose(flying)
            raise
        del flying[0]

    def _forget(self, flying: list[AheadPass]) -> None:
        """Wait for what still runs, and forget the tokens of these passes, which nobody took."""
        session, seq = self.session, self.seq
        if not flying:
            return
        try:
            for each in flying:
                each.bound.finish()
        except BackendError:
            # Nobody wants the pass, but what it left behind may be wrong.
            self._lose(flying)
            return
        session.remove(seq, session.length(seq) - len(flying))

    def _lose(self, flying: list[AheadPass]) -> None:
        """A pass failed: what it and those after it did is undone by the next pass."""
        for each in flying:
            with contextlib.suppress(BackendError):
                each.bound.finish()
        session, seq = self.session, self.seq
        session.memory.lose_last(seq, len(flying))
        length = session.memory.length(seq)
        del session._tokens[seq][length:]
        session._held.forget_states(seq, length)
        flying.clear()


def can_run_ahead(session: Session) -> bool:
    """Whether a session's passes run on a device of their own, and it can go back by a token
    without running others again."""
    recurrent = session._held.recurrent
    able = recurrent is None or (recurrent.window >= 1 and not recurrent.reruns)
    return able and session.model.backend.runs_ahead and session.program == "trunk"
