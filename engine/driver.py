"""An engine that steps itself: on a thread of its own, for as long as there is something to do. A
second one compiles what comes later."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar

from ..graph.errors import RiverrunError
from .engine import Engine
from .event import Event
from .request import Request

T = TypeVar("T")
# Steps in a row that raise: then what is left of the requests is given up.
MOST_FAILURES = 8
# While requests run, what is compiled beside them rests so many times as long as it took: beside
# one plan after another, in the same interpreter, steps took 1.2 to 1.7 times as long.
REST, LOOK = 40, 0.05  # LOOK: seconds after which it looks whether they have ended


def rest(until: float, busy: Callable[[], bool]) -> None:
    """Sleep until this time of time.monotonic(), or until nothing is busy."""
    while busy() and time.monotonic() < until:
        time.sleep(LOOK)


class Driver:
    """Steps an engine until `close`, and has the plans made that are in `Engine.later`: they are
    compiled beside its steps, and attached between two of them. Its methods may be called from any
    thread.

    tell: called on the driver's thread with the events of each step; failed: with an exception
    that rose from a step, after which the engine has gone on with the requests that it could;
    made: called behind each of these plans, on the thread that compiles."""

    def __init__(
        self,
        engine: Engine,
        tell: Callable[[Sequence[Event]], None],
        failed: Callable[[BaseException], None],
        made: Callable[[], None] = lambda: None,
    ) -> None:
        self.engine, self._tell, self._failed, self._made = engine, tell, failed, made
        self._wake, self._closing = threading.Condition(threading.RLock()), False
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._making = threading.Thread(target=self._make_later, name="plans", daemon=True)
        self._thread.start()
        self._making.start()

    def submit(self, prompt: str | Sequence[int], max_tokens: int = -1, **options: Any) -> Request:
        """`Engine.submit`. Raises RequestError as that does, and RuntimeError after `close`."""
        with self._wake:
            if self._closing:
                raise RuntimeError("this driver is closed")
            request = self.engine.submit(prompt, max_tokens, **options)
            self._wake.notify()
        return request

    def cancel(self, request: Request) -> None:
        """`Request.cancel`, heeded before the next pass."""
        request.cancel()
        with self._wake:
            self._wake.notify()

    def between_steps(self, work: Callable[[], T]) -> Future[T]:
        """What `work` returns or raises, called between two steps. Raises RuntimeError after
        `close`."""
        future: Future[T] = Future()
        with self._wake:
            if self._closing:
                raise RuntimeError("this driver is closed")
            self._calls.append((work, future))
            self._wake.notify()
        return future

    def close(self) -> None:
        """Cancel what runs, tell its ends, close the engine, and wait until that is done."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()
        self._making.join()

    def _run(self) -> None:
        failures = 0
        while self._wait():
            self._answer_calls()
            try:
                events = self.engine.step()
                failures = 0
            except Exception as error:
                failures += 1
                self._failed(error)
                events = self.engine.give_up(error) if failures >= MOST_FAILURES else []
            if events:
                self._tell(events)
        self._end()

    def _make_later(self) -> None:
        """What cannot be made says so again to the requests that need it."""
        for piece in self.engine.later:
            if self._closing:
                return
            began = time.monotonic()
            with suppress(RiverrunError, CancelledError):
                piece.compile()
                attached = self._unless_closing(piece.attach)
                if attached is not None:
                    attached.result()
                self._made()
            until = time.monotonic() + REST * (time.monotonic() - began)
            rest(until, lambda: not (self.engine.idle or self._closing))

    def _unless_closing(self, work: Callable[[], T]) -> Future[T] | None:
        with self._wake:
            return None if self._closing else self.between_steps(work)

    def _wait(self) -> bool:
        """Until there is something to do; whether that is a step."""
        with self._wake:
            while self.engine.idle and not self._calls and not self._closing:
                self._wake.wait()
            while not (self._calls or self._closing):
                patience = self.engine.patience
                if not patience or not self._wake.wait(patience):
                    break
            return not self._closing

    def _answer_calls(self) -> None:
        while self._calls:
            work, future = self._calls.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

    def _end(self) -> None:
        try:
            self._tell(self.engine.close())
        except Exception as error:
            self._failed(error)
        while self._calls:
            self._calls.popleft()[1].cancel()
