"""The engine: steps many requests over the sequences of one session."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

from .admission import prompt_ids
from .ahead import Ahead
from .constraints import Constraint
from .drafting import Drafting, Opener
from .event import Event
from .guard import Call, Guard
from .occupancy import Occupancy, occupancy
from .options import make_options
from .parked import Parked
from .pausing import Pausing
from .pieces import Piece
from .prompting import Prompting
from .request import Request
from .roster import Roster
from .rounds import Rounds
from .sampler.params import make_params
from .sequences import Sequences
from .session import Session
from .slots import Slots

if TYPE_CHECKING:
    from .model import Model

T = TypeVar("T")
Speculative = str | Opener | Drafting | None


class Engine:
    """Continues many texts at once: `submit` and `Request.cancel` from any thread, `step` by one.

    A step is a pass over prompts, or a round of all that decode: a pass of those whose tokens the
    device chooses, and one of the others. The two take turns, so that decoding waits for 512 tokens
    of prompts at most, of fewer where they take long. A request that fails ends alone; what it
    gives depends on itself alone."""

    def __init__(
        self,
        model: Model,
        *,
        n_seqs: int = 1,
        n_ctx: int | None = None,
        draft_max: int = 0,
        spec: Speculative = None,
        session: Session | None = None,
        sequences: type[Sequences] = Sequences,
        **memory: Any,
    ) -> None:
        """n_seqs: requests that run at a time; n_ctx: tokens of the longest; spec: drafters of
        requests that do not name their own; draft_max: the most drafts that a request may ask for
        (at least those of spec); memory: further fields of SessionOptions (rollback, cache_bytes,
        cache_type_k, ...). session: use its sequence 0 and what that holds, instead of memory of
        the engine's own; nobody else may use it until `close`. sequences: a class of one's own that
        looks into passes."""
        self.model, self._spec = model, model.opener(spec)
        self._own = session is None
        if session is None:
            longest = max(draft_max, getattr(self._spec, "longest", 0))
            if longest:
                memory.setdefault("n_rs_seq", longest)
            session = Session(model, model.plan_session(n_ctx, n_seqs, **memory), sequences)
        self.session, self.guard = session, Guard()
        session.guard.claim(self)
        self.sequences = session.sequences
        self._roster = Roster(self.sequences, self.sequences.n_seqs if self._own else 1)
        self._queue: deque[Request] = deque()
        self._numbers = count()
        self._ahead = Ahead(self.sequences)
        self._parked = Parked(self.sequences)
        self._pausing = Pausing(
            self.sequences, self._roster, self._parked, self._queue, self._ahead
        )
        self._slots = Slots(self.sequences, self._roster, self._parked, self._pausing)
        self._rounds = Rounds(self.sequences, self._pausing.fits_drafts)
        self._prompting = Prompting(
            self.sequences, self._roster, self._parked, self._ahead, self._rounds, not self._own
        )
        try:
            self._prompting.open(self._spec)
        except BaseException:
            session.guard.release(self)  # an error that is kept keeps this object, too
            raise
        self.later: list[Piece] = []  # of plans that a driver is to have made
        self._decoded = True
        self._in_step = False  # still set when an exception broke off the last step

    def __repr__(self) -> str:
        active = len(self._roster.active)
        return f"<Engine {self.model.name}, {active} active, {len(self._queue)} queued>"

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def submit(
        self,
        prompt: str | Sequence[int],
        max_tokens: int = -1,
        *,
        stop: str | Sequence[str] = (),
        stop_token_ids: Sequence[int] = (),
        ignore_eos: bool = False,
        cache_prompt: bool = False,
        speculative: Speculative | bool = True,
        constraint: Constraint | None = None,
        logprobs: int | None = None,
        shown_token_ids: Sequence[int] = (),
        draft_max: int | None = None,
        **sampling: Any,
    ) -> Request:
        """Add a request; it runs once a sequence is free. The arguments are those of
        `Model.generate`; speculative: True for the engine's own drafters, None for none;
        shown_token_ids: control tokens whose text is part of what is generated; draft_max: most
        drafts of a round, None for as many as its drafters give.

        Raises RequestError for what is out of range, prompts that do not fit, and a session of the
        caller's that has pending tokens."""
        options = make_options(
            self.model,
            max_tokens,
            stop,
            stop_token_ids,
            ignore_eos,
            cache_prompt,
            logprobs,
            shown_token_ids,
            draft_max,
        )
        before = [] if self._own or cache_prompt else self._before()
        ids = prompt_ids(self.model, prompt, before, self.sequences.n_ctx)
        request = Request(self.model, ids, make_params(sampling), options, constraint, before)
        asked = self._spec if speculative is True else self.model.opener(speculative or None)
        request.opener, request.number = asked, next(self._numbers)
        self._queue.append(request)
        self._prompting.came()
        return request

    def step(self) -> list[Event]:
        """Run one pass; what it did, for every request that it concerned. No events when there is
        nothing to do.

        Raises SessionBusy while another thread is inside. Exceptions of requests do not rise; they
        are in `Request.error`. After one that does (KeyboardInterrupt), the next step goes on with
        all requests that it left whole, and ends the others with SequenceLost."""
        call = Call()
        try:
            self.guard.enter(call)
            self._recover()
            self._in_step = True
            stepped = self._step()
            self._in_step = False
            return self._events(stepped)
        finally:
            self.guard.leave(call)

    @property
    def spec(self) -> Opener | Drafting | None:
        """The drafters of requests that do not name their own."""
        return self._spec

    def prepare(self) -> bool:
        """Compile rounds of any number of requests, or give their pieces; whether their drafters
        want hidden rows."""
        return self._prompting.prepare(self._spec)

    @property
    def idle(self) -> bool:
        """Whether no request waits or runs."""
        return not (self._queue or self._roster.active or self._roster.ended)

    @property
    def patience(self) -> float:
        """Seconds for which another request should be waited for before the next step, which would
        be the better for it: 0.0 for none."""
        return self._prompting.patience(self._queue)

    def occupancy(self) -> Occupancy:
        """How full its memory is. Between steps, or from any thread where a count that is a step
        old will do."""
        active = {request.seq for request in list(self._roster.active)}
        idle = [seq for seq in range(self.sequences.n_seqs) if seq not in active]
        return occupancy(self.sequences, self._parked, idle, len(self._queue))

    def save(self, seq: int) -> bytes:
        """What a sequence holds that no request has, as `Session.save` gives it; between steps.

        Raises RequestError for a sequence that a request has."""
        return self._alone(lambda: self._slots.save(seq))

    def restore(self, seq: int, data: bytes) -> int:
        """Bring that back into a sequence that no request has; how many tokens it has. Prompts with
        `cache_prompt` go on from them. Raises RequestError as `save` does, and for data that are
        damaged, of another model, or too long; then nothing changes."""
        return self._alone(lambda: self._slots.restore(seq, data))

    def erase(self, seq: int) -> int:
        """Forget what a sequence holds; how many tokens that were. Raises as `save` does."""
        return self._alone(lambda: self._slots.erase(seq))

    def _alone(self, work: Callable[[], T]) -> T:
        """What `work` gives, while nobody steps."""
        call = Call()
        try:
            self.guard.enter(call)
            self._recover()
            return work()
        finally:
            self.guard.leave(call)

    def give_up(self, error: BaseException) -> list[Event]:
        """End all requests with this error; their ends."""
        self._recover()
        for request in [*self._roster.active, *self._queue]:
            self._roster.fail(request, error)
        self._queue.clear()
        return self._events([])

    def close(self) -> list[Event]:
        """Cancel what runs, let drafters write what they keep, give the session back; the ends of
        what was cancelled."""
        for request in [*self._roster.active, *self._queue]:
            request.cancel()
        self._recover()
        self._end_cancelled()
        self._prompting.close()
        self.session.guard.release(self)
        return self._events([])

    def _before(self) -> list[int]:
        """What a prompt goes on from in a session of the caller's."""
        self.sequences.require_none_pending(0)
        return self.sequences.tokens(0)

    def _step(self) -> list[Request]:
        """The requests that a pass was made for."""
        self._end_cancelled()
        self._pausing.admit(self._prompting.begin)
        prompts, decoding = self._roster.prompting, self._roster.decoding
        if prompts and self._prompting.has_turn(prompts, decoding, self._decoded):
            self._decoded = False
            chosen = self._prompting.choose(prompts, bool(decoding))
            self._prompting.run(self._pausing.fit(chosen))
            return [*chosen, *(r for r in self._pausing.paused() if r not in chosen)]
        if decoding:
            self._decoded, began = True, perf_counter()
            self._decode(decoding)
            self._prompting.note_decoding(perf_counter() - began)
        return [*decoding, *(r for r in self._pausing.paused() if r not in decoding)]

    def _decode(self, requests: Sequence[Request]) -> None:
        """A pass of those that the host chooses for, and one of the others."""
        # One that an interrupted step has left at its end only has to be ended.
        tokens = 1 + self._ahead.overlaps
        going = self._pausing.fit({r: tokens for r in requests if not r.ending})
        resting = self._rounds.resting(going)
        on_device = [r for r in going if r in resting or (r.on_device and r.drafting is None)]
        others = self._ahead.without([r for r in going if r not in on_device])
        on_device += self._rounds.run(others)
        if on_device:
            self._ahead.run(on_device, self._roster.joining)
        for request in requests:
            if request.ending:
                self._roster.end(request)

    def _events(self, stepped: Sequence[Request]) -> list[Event]:
        """What there is to report of requests that are active or ended."""
        ended, self._roster.ended = self._roster.ended, []
        self._prompting.ended(ended)
        going = [Event(r, r.pieces(), False) for r in stepped if r not in ended]
        return going + [Event(r, r.pieces(), True) for r in ended]

    def _end_cancelled(self) -> None:
        cancelled = [r for r in self._roster.active if r.cancelled]
        if cancelled:
            self._ahead.drain()
        for request in cancelled:
            self._roster.end(request, "cancelled")
        for request in [r for r in self._queue if r.cancelled and r.result is None]:
            self._queue.remove(request)
            self._roster.end(request, "cancelled")

    def _recover(self) -> None:
        """After an exception in the middle of a step: requests go on whose sequence and tokens
        agree, the others end."""
        if self._in_step:
            self._ahead.forget()
            self._parked.sweep()
            self._roster.recover()
            self._in_step = False
