"""Decoding whose tokens are chosen on the device: each pass picks a token for every sequence, and
the next pass starts from these.

On a device that runs by itself a pass is started before the one in front of it is read, so the
device never waits for the host. A token that turns out to be one too many, since its text ended,
was cancelled or filled its context, is forgotten again: the memory must be able to go back by one
committed token without running others again (snapshots and replay with n_rs_seq of 1 or more, and
attention alone)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..backends import BoundPlan, SplitBackend
from ..graph.errors import BackendError, RiverrunError, Unsupported
from ..models.step import CANDIDATES, NEXT_TOKEN, StepShape
from .bound_step import BoundStep, Part
from .buckets import sequence_bucket
from .request import Request
from .sequences import Sequences

UNKNOWN = -1  # a token that the device has picked and the host has not read


@dataclass(slots=True)
class Flight:
    """A pass that was started: its plan, and the request of each row."""

    plan: PickingPlan
    requests: list[Request]


class PickingPlan:
    """A bound pass of up to `size` sequences that picks their tokens."""

    def __init__(self, bound: BoundPlan, step: BoundStep, size: int) -> None:
        self.bound, self.step, self.size = bound, step, size
        inputs = bound.inputs
        self._read, self._write = inputs["token_slots"], inputs["next_slots"]
        self._position = inputs.get("draw_position")
        self._draws: list[Request] = []

    def fill(self, requests: Sequence[Request], parts: Sequence[Part]) -> None:
        """The data of a pass."""
        n = len(parts)
        self.step.fill(parts, n)
        seqs = [part.seq for part in parts]
        self._read[:n], self._write[:n] = seqs, seqs
        self._read[n:], self._write[n:] = 0, -1
        if self._position is None:
            return
        self._position[:n] = [part.first + 1 for part in parts]
        if requests != self._draws:
            self._ask(requests)

    def _ask(self, requests: Sequence[Request]) -> None:
        """How each row chooses; the same from pass to pass."""
        inputs, seeds = self.bound.inputs, self.bound.inputs["seed"].view(np.uint32)
        for row, request in enumerate(requests):
            draw = request.draw
            assert draw is not None
            inputs["top_k"][row] = draw.top_k
            for name in ("temperature", "top_p", "min_p"):
                inputs[name][row] = getattr(draw, name)
            seeds[row] = draw.seed & 0xFFFFFFFF, draw.seed >> 32
        # Rows of padding draw from one candidate.
        inputs["top_k"][len(requests) :] = 1
        inputs["temperature"][len(requests) :] = 0.0
        self._draws = list(requests)


class Ahead:
    """Passes of requests that the device can choose for (`Request.draw`)."""

    def __init__(self, sequences: Sequences) -> None:
        self.sequences = sequences
        # Two, because the inputs of a pass stay until it is over.
        self._plans: dict[tuple[int, int], list[PickingPlan]] = {}
        self._flying: deque[Flight] = deque()
        # A split model has no place for the state that tokens are handed on in.
        self._able = not isinstance(sequences.model.backend, SplitBackend)
        # Whether a pass may be started while another runs.
        self.overlaps = sequences.model.backend.runs_ahead and sequences.storage.forgets_last

    def prepare(self, request: Request) -> bool:
        """Compile what a request alone will run; whether its device can choose for it at all."""
        if request.draw is None or self.sequences.plan.options.program != "trunk":
            return False
        if not self._able:
            return False
        try:
            self._plan([request])
        except Unsupported:
            self._able = False
        return self._able

    def run(self, requests: Sequence[Request]) -> None:
        """A token for each request at least; one that cannot go on fails alone."""
        try:
            self._run(list(requests))
        except RiverrunError as error:
            self.forget()
            going = [request for request in requests if not request.ending]
            if len(going) == 1:
                going[0].fail(error)
                return
            # Which of them the pass failed for is not known, so each runs by itself.
            for request in going:
                self.run([request])

    def drain(self) -> None:
        """Wait for what was started, and take its tokens."""
        while self._flying:
            self._finish()

    def forget(self) -> None:
        """Wait for what was started; tokens that no request has taken are forgotten."""
        requests = {id(r): r for flight in self._flying for r in flight.requests}
        failed = False
        while self._flying:
            try:
                self._flying[0].plan.bound.finish()
            except BackendError:
                failed = True  # what the pass left behind may be wrong
            self._flying.popleft()
        for request in requests.values():
            self._go_back(request, failed)

    def _run(self, requests: list[Request]) -> None:
        flying = self._flying
        if flying and any(r not in flying[-1].requests for r in requests):
            self.drain()  # one that joins has its newest token with the host
            requests = [r for r in requests if not r.ending]
        if not flying and requests:
            self._enter(requests)
            self._start(requests)
        if self.overlaps and flying:
            going = [r for r in flying[-1].requests if self._has_room(r)]
            if going:
                self._start(going)
        if flying:
            self._finish()
        if any(r.ending or r.cancelled for r in requests):
            self.drain()

    def _enter(self, requests: Sequence[Request]) -> None:
        """Complete what is due, and hand the newest tokens to the device."""
        sequences = self.sequences
        for request in requests:
            sequences.catch_up(request.seq)
        self._plan(requests)  # makes the state that the tokens lie in
        for request in requests:
            token = np.array([request.token], np.float32)
            sequences.pools.write(NEXT_TOKEN, (request.seq,), token)

    def _has_room(self, request: Request) -> bool:
        """Whether a token may follow the one that is under way."""
        left = request.left
        flights = len(self._flying)
        room = self.sequences.evaluated(request.seq) < self.sequences.n_ctx
        return room and not request.cancelled and (left is None or left > flights)

    def _start(self, requests: list[Request]) -> None:
        """Put a pass on the device; its tokens count as committed."""
        plan = self._plan(requests)

        def start(parts: Sequence[Part]) -> None:
            plan.fill(requests, parts)
            if self.overlaps:
                plan.bound.start()
            else:
                plan.bound.run(len(parts))

        tokens = [(r.seq, UNKNOWN if self._flying else r.token) for r in requests]
        self.sequences.advance(tokens, start, sure=not self.overlaps)
        self._flying.append(Flight(plan, requests))

    def _finish(self) -> None:
        """Wait for the oldest pass, and give its requests their tokens."""
        flight = self._flying[0]
        flight.plan.bound.finish()
        outputs = flight.plan.bound.outputs
        tokens = outputs["token"][:, 0].tolist()
        largest = outputs["largest"][:, 0].tolist()
        self._flying.popleft()
        behind = self._flying[0].requests if self._flying else ()
        for row, request in enumerate(flight.requests):
            if request.ending or request.cancelled:
                self._go_back(request)
                continue
            request.changing = True
            if math.isfinite(largest[row]):
                if request in behind:
                    self.sequences.name_last(request.seq, tokens[row])
                request.chooser.accept(tokens[row])
                request.take(tokens[row])
            else:
                self._go_back(request)
                request.fail(_damaged(largest[row]))
            request.changing = False

    def _go_back(self, request: Request, failed: bool = False) -> None:
        """Forget what was evaluated beyond the tokens that a request has taken."""
        sequences, seq = self.sequences, request.seq
        more = sequences.evaluated(seq) - request.evaluated
        if failed or not sequences.can_remove(seq, sequences.evaluated(seq) - max(0, more)):
            sequences.forget_last(seq, max(0, more))
        elif more > 0:
            sequences.remove(seq, request.evaluated)

    def _plan(self, requests: Sequence[Request]) -> PickingPlan:
        """A plan for so many sequences that no pass in flight uses."""
        greedy = all(r.draw is not None and r.draw.candidates == 1 for r in requests)
        size = sequence_bucket(len(requests), self.sequences.n_seqs)
        key = size, 1 if greedy else CANDIDATES
        plans = self._plans.get(key)
        if plans is None:
            plans = self._plans[key] = [self._bind(*key) for _ in range(1 + self.overlaps)]
        used = [flight.plan for flight in self._flying]
        return next(plan for plan in plans if plan not in used)

    def _bind(self, size: int, candidates: int) -> PickingPlan:
        sequences = self.sequences
        shape = StepShape(size, size, size, candidates=candidates)
        plan = sequences.model.plan(shape, sequences.plan.capacity, "step", "ahead")
        if NEXT_TOKEN not in sequences.pools.specs:
            sequences.pools.add({NEXT_TOKEN: plan.states[NEXT_TOKEN]})
        bound = sequences.runner.bind(shape, "step", "ahead")
        return PickingPlan(bound, sequences.storage.step(bound), size)


def _damaged(largest: float) -> BackendError:
    return BackendError(f"the logits' largest value is {largest}; the model is damaged")
