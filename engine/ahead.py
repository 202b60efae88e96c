"""Decoding whose tokens are chosen on the device: each pass picks a token for every sequence, and
the next pass starts from these.

On a device that runs by itself a pass is started before the one in front of it is read, so the
device never waits for the host. A token that turns out to be one too many, since its text ended,
was cancelled or filled its context, is forgotten again: the memory must be able to go back by one
committed token without running others again (snapshots and replay with n_rs_seq of 1 or more, and
attention alone). Requests with drafters come here between rounds with drafts; a pass of theirs is
started early where the round after this one is sure to have no drafts, either."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from ..backends import SplitBackend
from ..graph.errors import BackendError, RiverrunError, Unsupported
from ..models.step import CANDIDATES, NEXT_TOKEN
from .bound_step import Part
from .buckets import sequence_bucket
from .draws import require_sound
from .picking import Flight, PickingPlan
from .picking_plans import PickingPlans
from .request import Request, by_drafting
from .sequences import Sequences

UNKNOWN = -1  # a token that the device has picked and the host has not read


class Ahead:
    """Passes of requests that the device can choose for (`Request.draw`)."""

    def __init__(self, sequences: Sequences) -> None:
        self.sequences = sequences
        # Those of the last pass; whether they give hidden rows.
        self._planned: tuple[list[Request], bool, list[PickingPlan]] = [], False, []
        self._flying: deque[Flight] = deque()
        # Requests whose newest token is on the device, while they have so many.
        self._handed_on: dict[Request, int] = {}
        self._pass_s = 0.0  # of the last pass, where passes do not overlap
        # When the pass before the one under way was over, if nothing else ran since.
        self._since: float | None = None
        # Whether the device can choose; a split model has no place for the state that tokens are
        # handed on in.
        self.able = not isinstance(sequences.model.backend, SplitBackend)
        # Whether a pass may be started while another runs.
        self.overlaps = sequences.model.backend.runs_ahead and sequences.storage.forgets_last
        # Two of each, because the inputs of a pass stay until it is over.
        self._plans = PickingPlans(sequences, 1 + self.overlaps)

    def prepare(self, request: Request) -> bool:
        """Compile what a request alone will run; whether its device can choose for it at all."""
        if request.draw is None or self.sequences.plan.options.program != "trunk":
            return False
        if not self.able:
            return False
        try:
            self._plan([request])
        except Unsupported:
            self.able = False
        return self.able

    def prepare_all(self, hidden: bool) -> None:
        """Compile what any number of requests run. hidden: their drafters want hidden rows."""
        if self.able and self.sequences.plan.options.program == "trunk":
            self._plans.prepare_all(hidden)

    def run(self, requests: Sequence[Request], joining: bool = False) -> None:
        """A token for each request at least; one that cannot go on fails alone. joining: another is
        about to, so that no pass is left under way, for which it would have to wait."""
        try:
            self._run(requests, joining)
        except RiverrunError as error:
            self.forget()
            for request in requests:
                if request.ending or request.cancelled:
                    continue
                if len(requests) == 1:
                    request.fail(error)
                else:
                    # Which of them the pass failed for is not known.
                    self._run_alone(request)

    def drain(self) -> None:
        """Wait for what was started, and take its tokens; those of a pass that failed are
        forgotten, and chosen anew by the next one."""
        try:
            self._finish_all()
        except RiverrunError:
            self.forget()

    def forget(self) -> None:
        """Wait for what was started; tokens that no request has taken are forgotten. What an
        exception has broken off is completed by another call."""
        self._handed_on = {}
        for flight in self._flying:
            with suppress(BackendError):
                flight.wait()
        # What comes behind a failed pass started from what that left.
        failed = any(flight.error is not None for flight in self._flying)
        for request in dict.fromkeys(r for flight in self._flying for r in flight.requests):
            self._go_back(request, failed)
        self._flying.clear()

    def without(self, requests: Sequence[Request]) -> list[Request]:
        """Requests that others make a pass for: what is under way of theirs is over then; those of
        them that it did not end."""
        if requests:
            self.disturb()
        if any(r in flight.requests for flight in self._flying for r in requests):
            self.drain()
        return [r for r in requests if not r.ending]

    def disturb(self) -> None:
        """Another pass runs: how long the one under way takes is not known."""
        self._since = None

    def leave(self, request: Request) -> None:
        """A request gives up its sequence, while no pass is under way."""
        self._handed_on.pop(request, None)

    def _run(self, requests: Sequence[Request], joining: bool) -> None:
        flying = self._flying
        if flying and any(r not in flying[-1].requests for r in requests):
            self._finish_all()  # one that joins has its newest token with the host
        # One under way follows the pass before without a pause.
        began = self._since if flying else time.perf_counter()
        if not flying:
            going = [r for r in requests if not (r.ending or r.cancelled)]
            if not going:
                return
            self._enter(going)
            self._start(going)
        if self.overlaps and not joining and _rest_on(flying[-1].requests):
            going = [r for r in flying[-1].requests if self._has_room(r)]
            if going:
                self._start(going)
        self._finish()
        if any(r.ending or r.cancelled for r in requests):
            self._finish_all()
        self._since = time.perf_counter()
        self._note_rest(requests, None if began is None else self._since - began)

    def _run_alone(self, request: Request) -> None:
        """One pass of a request, from start to end."""
        try:
            self._enter([request])
            self._start([request])
            self._finish()
        except RiverrunError as error:
            self.forget()
            request.fail(error)

    def _finish_all(self) -> None:
        while self._flying:
            self._finish()

    def _enter(self, requests: Sequence[Request]) -> None:
        """Complete what is due, and hand the newest tokens to the device where it lacks them."""
        sequences = self.sequences
        new = [r for r in requests if self._handed_on.get(r) != len(r.tokens)]
        if not new:
            return
        for request in new:
            sequences.catch_up(request.seq)
        self._plan(requests)  # makes the state that the tokens lie in
        # Each write waits for the device. Slots of others are written before they are read.
        tokens = {request.seq: request.token for request in requests}
        first, last = min(r.seq for r in new), max(r.seq for r in new)
        slots = [[tokens.get(seq, 0)] for seq in range(first, last + 1)]
        sequences.pools.write(NEXT_TOKEN, slice(first, last + 1), np.array(slots, np.float32))

    def _has_room(self, request: Request) -> bool:
        """Whether a token may follow the one that is under way."""
        left = request.left
        flights = len(self._flying)
        room = self.sequences.evaluated(request.seq) < self.sequences.n_ctx
        return room and not request.cancelled and (left is None or left > flights)

    def _start(self, requests: list[Request]) -> None:
        """Put a pass on the device; its tokens count as committed."""
        plan = self._plan(requests)
        tokens = [(r.seq, UNKNOWN if self._flying else r.token) for r in requests]

        def start(parts: Sequence[Part]) -> None:
            plan.fill(requests, parts)
            # Before it starts, so that whatever happens nothing runs that nobody waits for.
            self._flying.append(Flight(plan, requests))
            if self.overlaps:
                plan.bound.start()
            else:
                plan.bound.run(len(parts))

        began = time.perf_counter()
        self.sequences.advance(tokens, start, sure=not self.overlaps)
        self._pass_s = time.perf_counter() - began

    def _finish(self) -> None:
        """Wait for the oldest pass, and give its requests their tokens."""
        flight = self._flying[0]
        flight.wait()
        outputs = flight.plan.bound.outputs
        tokens, largest = outputs["token"][:, 0].tolist(), outputs["largest"][:, 0].tolist()
        hidden = outputs.get("hidden")
        behind = self._flying[1].requests if len(self._flying) > 1 else ()
        for row, request in enumerate(flight.requests):
            more = request in behind
            # One that leaves takes the token of all passes but the last, which can be forgotten.
            if not request.ending and (more or not request.cancelled):
                rows = None if hidden is None else hidden[row : row + 1]
                self._take(request, tokens[row], largest[row], more, rows)
            if not more and (request.ending or request.cancelled):
                self._go_back(request)
        self._flying.popleft()
        self._handed_on = {request: len(request.tokens) for request in flight.requests}

    def _take(
        self, request: Request, token: int, largest: float, more: bool, hidden: np.ndarray | None
    ) -> None:
        """Give a request its token, and its drafters the one before, which was evaluated. more: a
        pass that starts from the token is under way; hidden: f32 [1, n_embd], where drafters want
        it. An error within fails the request alone."""
        request.changing = True
        try:
            require_sound(largest)
            if more:
                self.sequences.name_last(request.seq, token)
            if request.chooser.remembers:
                request.chooser.accept(token)
            request.take(token)
            if request.drafting is not None:
                held = self.sequences.last_token(request.seq, int(more))
                request.drafting.watch(request.seq, (held,), hidden)
        except Exception as error:
            request.fail(error)
        request.changing = False

    def _note_rest(self, requests: Sequence[Request], seconds: float | None) -> None:
        """Tell drafters of a round without them, which took so long."""
        for drafting, group in by_drafting(requests):
            took = (
                None if seconds is None else (seconds if self.overlaps else self._pass_s, seconds)
            )
            drafting.note_rest([r.seq for r in group], len(requests), took)

    def _go_back(self, request: Request, failed: bool = False) -> None:
        """Forget what was evaluated beyond the tokens that a request has taken. failed: what its
        passes left behind may be wrong."""
        if self.sequences.is_lost(request.seq):
            return
        try:
            self.sequences.shorten(request.seq, request.evaluated, failed)
        except RiverrunError as error:
            request.fail(error)

    def _plan(self, requests: Sequence[Request]) -> PickingPlan:
        """A plan for so many sequences that no pass in flight uses."""
        n = len(requests)
        hidden = any(drafting.reads(n) for drafting, _ in by_drafting(requests))
        if requests != self._planned[0] or hidden != self._planned[1]:
            self._planned = list(requests), hidden, self._plans_of(requests, hidden)
        used = [flight.plan for flight in self._flying]
        return next(plan for plan in self._planned[2] if plan not in used)

    def _plans_of(self, requests: Sequence[Request], hidden: bool) -> list[PickingPlan]:
        """All plans that passes of these requests may use. hidden: they give hidden rows."""
        greedy = all(r.draw is not None and r.draw.candidates == 1 for r in requests)
        size = sequence_bucket(len(requests), self.sequences.n_seqs)
        return self._plans.of((size, 1 if greedy else CANDIDATES, hidden))


def _rest_on(requests: Sequence[Request]) -> bool:
    """Whether the next round is sure to have no drafts for these."""
    return all(drafting.rests_on() for drafting, _ in by_drafting(requests))
