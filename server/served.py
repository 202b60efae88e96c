"""A loaded model as the server uses it: its engine, stepped on a thread of its own, and the streams
of text that come of requests."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engine.constraints import Constraint
from ..engine.driver import Driver
from ..engine.engine import Engine
from ..engine.event import Event
from ..engine.request import Request
from ..graph.errors import RequestError
from ..speculative import Speculation
from .failures import ApiError, overloaded
from .logs import log
from .long_lived import made

if TYPE_CHECKING:
    from .metrics import Metrics

MOST_CONSTRAINTS = 32  # that are kept compiled


class Part(NamedTuple):
    """New text of a request. tokens: places of the first of its tokens and of the one behind the
    last; pieces: the text by who proposed it, None for the model itself; finished: there is no
    more; choice: which of several texts that one HTTP request asked for."""

    text: str
    tokens: tuple[int, int]
    pieces: list[tuple[str, str | None]]
    finished: bool
    choice: int


class Running:
    """A request that was submitted, on the event loop that reads it."""

    def __init__(self, served: Served, request: Request) -> None:
        self.served, self.request = served, request
        self._news = asyncio.Event()
        self._read = self._tokens = 0
        self.finished = self._late = False
        self.choice = 0
        self.began = time.monotonic()

    def notify(self, finished: bool) -> None:
        """There is news."""
        self.finished = self.finished or finished
        self._news.set()

    @property
    def failed(self) -> bool:
        """Whether it has ended with an error, which `parts` raises behind the last of them."""
        return self.request.error is not None

    def cancel(self) -> None:
        """End it before its next pass."""
        if not self.finished:
            self.served.driver.cancel(self.request)

    async def parts(self) -> AsyncGenerator[Part, None]:
        """Its text as it comes; whoever stops reading has it cancelled. Raises ApiError where it
        fails, or takes longer than the server allows."""
        limit = self.served.timeout
        timer = None
        if limit:
            left = self.began + limit - time.monotonic()
            timer = asyncio.get_running_loop().call_later(left, self._expire)
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                if self._late and not self.finished:
                    raise _timed_out(limit)
                finished = self.finished
                part = self._next(finished)
                if part.text or part.finished:
                    yield part
                if finished:
                    self._raise_failure()
                    return
        finally:
            if timer is not None:
                timer.cancel()
            self.cancel()

    def _expire(self) -> None:
        """It has taken too long."""
        self._late = True
        self._news.set()

    def _next(self, finished: bool) -> Part:
        """What is new. The engine's thread appends to the lists that are read here."""
        request, first, end = self.request, self._tokens, self._tokens
        last, drafters = request.n_pieces, request.drafters
        whole, pieces = "", list[tuple[str, str | None]]()
        for at in range(self._read, last):
            text, end = request.piece(at), request.piece_end(at)
            drafter = drafters.get(end - 1)
            whole += text
            if pieces and pieces[-1][1] == drafter:
                text = pieces.pop()[0] + text
            pieces.append((text, drafter))
        self._read, self._tokens = last, len(request.tokens) if finished else end
        return Part(whole, (first, self._tokens), pieces, finished, self.choice)

    def _raise_failure(self) -> None:
        error = self.request.error
        if error is not None:
            if isinstance(error, Exception):
                raise error
            raise ApiError(500, f"the request was lost: {error}", "server_error")


def _timed_out(limit: float) -> ApiError:
    return ApiError(
        504,
        f"the request took longer than the {limit:g} s that this server allows",
        "timeout_error",
        code="timeout",
    )


class Served:
    """A model by its name in requests. Used on one event loop.

    longest_queue: requests that may wait beside those that run; timeout: seconds for a request, 0
    for any."""

    def __init__(
        self, name: str, engine: Engine, longest_queue: int, timeout: float, metrics: Metrics
    ) -> None:
        self.name, self.engine, self.model = name, engine, engine.model
        self.timeout, self._metrics = timeout, metrics
        self._most = engine.session.n_seqs + longest_queue
        self._running: dict[Request, Running] = {}
        self._loop = asyncio.get_running_loop()
        self.driver = Driver(engine, self._tell, self._failed, made)
        self._constraints: dict[tuple[str, str], Constraint] = {}
        self._compiling = threading.Lock()
        self.embedding = asyncio.Lock()  # embeddings are made by one request at a time
        self.users = 0  # HTTP requests that may yet submit something
        self.last_used = time.monotonic()
        self.keep_alive: float | None = None  # seconds, where a request has asked for its own

    def __repr__(self) -> str:
        return f"<Served {self.name}, {len(self._running)} requests>"

    @property
    def n_ctx(self) -> int:
        """Tokens of the longest text."""
        return self.engine.session.n_ctx

    @property
    def busy(self) -> int:
        """Requests that wait or run."""
        return len(self._running)

    @property
    def requests(self) -> list[Request]:
        """Those that wait or run."""
        return list(self._running)

    @cached_property
    def speculation(self) -> Speculation | None:
        """The server's own."""
        spec = self.engine.spec
        return spec if isinstance(spec, Speculation) else None

    def check_length(self, tokens: Sequence[int]) -> None:
        """Raise ApiError for a prompt that does not fit in the context."""
        if not tokens:
            raise ApiError(400, "the prompt has no tokens; give at least one")
        if len(tokens) > self.n_ctx:
            raise self.too_long(len(tokens))

    def too_long(self, n: int, least: str = "") -> ApiError:
        """The error of a prompt of n tokens, more than the context holds. least: words before
        their number."""
        return ApiError(
            400,
            f"the prompt has {least}{n} tokens, and the context {self.n_ctx}; shorten it, or serve "
            "with a larger context (-c)",
            "exceed_context_size_error",
            code="context_length_exceeded",
            more={"n_prompt_tokens": n, "n_ctx": self.n_ctx},
        )

    def submit(self, tokens: Sequence[int], max_tokens: int, **options: Any) -> Running:
        """A request for the text behind these tokens; options: those of `Engine.submit`.

        Raises ApiError for a prompt that is too long and when too many wait, RequestError for
        options out of range."""
        self.check_length(tokens)
        if len(self._running) >= self._most:
            self._metrics.refused.inc()
            raise overloaded(f"{len(self._running)} requests wait or run; come back later")
        request = self.driver.submit(tokens, max_tokens, **options)
        running = self._running[request] = Running(self, request)
        self.last_used = time.monotonic()
        return running

    def constraint(self, kind: str, source: Any) -> Constraint:
        """What a text must conform to; those of late are kept compiled. Takes its time: for a
        thread. Raises RequestError for what cannot be enforced."""
        key = (kind, json.dumps(source, sort_keys=False))
        with self._compiling:
            found = self._constraints.pop(key, None)
        if found is None:
            found = self.model.constraint(kind, source)
        with self._compiling:
            self._constraints[key] = found
            while len(self._constraints) > MOST_CONSTRAINTS:
                del self._constraints[next(iter(self._constraints))]
        return found

    def drafts(self, wanted: bool | str | None, most: int | None) -> dict[str, Any]:
        """What a request asks of drafts, for `Engine.submit`. Raises RequestError for drafters that
        the server does not have."""
        own = self.speculation
        if wanted is False or most == 0:
            return {"speculative": False}
        if own is None:
            if wanted or most:
                raise RequestError(
                    "speculative: this server has no drafters; start it with --spec", "speculative"
                )
            return {}
        if not isinstance(wanted, str):
            return {"draft_max": most}
        kinds = tuple(dict.fromkeys(kind.strip() for kind in wanted.split(",")))
        for kind in kinds:
            if kind not in own.kinds:
                raise RequestError(
                    f"speculative: expected some of {', '.join(own.kinds)}, got {kind!r}",
                    "speculative",
                )
        if set(kinds) == set(own.kinds):
            return {"draft_max": most}
        # In the server's own order, so that there are no more chains than sets of drafters.
        chosen = replace(own, kinds=tuple(kind for kind in own.kinds if kind in kinds))
        return {"speculative": chosen, "draft_max": most}

    def close(self) -> None:
        """End what runs and free the model. Blocks until the pass in progress is over."""
        self.driver.close()
        self.engine.session.close()
        self.model.close()

    def _tell(self, events: Sequence[Event]) -> None:
        """On the engine's thread."""
        news = [(event.request, event.finished) for event in events]
        self._loop.call_soon_threadsafe(self._deliver, news)

    def _deliver(self, news: Sequence[tuple[Request, bool]]) -> None:
        for request, finished in news:
            running = self._running.get(request)
            if running is None:
                continue
            running.notify(finished)
            if finished:
                del self._running[request]
                self.last_used = time.monotonic()
                self._metrics.note_result(request)

    def _failed(self, error: BaseException) -> None:
        log("a step failed", error=f"{type(error).__name__}: {error}")
