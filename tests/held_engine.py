"""An engine that can be held in the middle of a pass, and counts its steps and passes."""

from __future__ import annotations

import threading
from typing import Any

import riverrun as rr
from riverrun.engine.engine import Engine
from riverrun.engine.event import Event
from riverrun.engine.sequences import Sequences

SECONDS = 30  # a watchdog's time


class HeldSequences(Sequences):
    """passes: how many have begun."""

    def __init__(self, model: rr.Model, plan: Any) -> None:
        self.passes, self.left = 0, 0
        self.free, self.stands = threading.Event(), threading.Event()
        self.free.set()
        super().__init__(model, plan)

    def evaluate(self, *given: Any, **more: Any) -> Any:
        self.begin()
        return super().evaluate(*given, **more)

    def verify(self, *given: Any, **more: Any) -> Any:
        self.begin()
        return super().verify(*given, **more)

    def advance(self, *given: Any, **more: Any) -> Any:
        self.begin()
        return super().advance(*given, **more)

    def begin(self) -> None:
        """A pass begins; where the engine is held, it stands here."""
        self.passes += 1
        if self.free.is_set():
            return
        self.left -= 1
        if self.left < 0:
            self.stands.set()
            assert self.free.wait(SECONDS)


class HeldEngine(Engine):
    """steps: that have begun; passes_of: how many passes each of them has, or has so far."""

    def __init__(self, model: rr.Model, **options: Any) -> None:
        self.steps, self.passes_of = 0, [0]
        super().__init__(model, sequences=HeldSequences, **options)
        assert isinstance(self.sequences, HeldSequences)
        self.looked_into = self.sequences

    def step(self) -> list[Event]:
        before = self.looked_into.passes
        self.steps += 1
        self.passes_of.append(0)
        try:
            return super().step()
        finally:
            self.passes_of[self.steps] = self.looked_into.passes - before

    def hold(self, passes: int = 0) -> None:
        """Stand at the beginning of a pass, behind so many others."""
        self.looked_into.left = passes
        self.looked_into.stands.clear()
        self.looked_into.free.clear()

    def go_on(self) -> None:
        """Stand no longer."""
        self.looked_into.free.set()

    def stand(self) -> None:
        """Wait until it stands; there has to be enough to do."""
        assert self.looked_into.stands.wait(SECONDS)
