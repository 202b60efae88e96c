"""Prompts that wait for others to share their pass: when, for how long, and what it saves."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from engine_rig import GREEDY, finish
from held_engine import SECONDS
from pass_rig import Watched, card, watched
from riverrun.engine import driver, prompting
from riverrun.engine.buckets import MAX_TOKENS
from riverrun.engine.companions import GAP, MOST_ENDS, SOON, WAIT, Companions
from riverrun.engine.engine import Engine
from riverrun.engine.event import Event
from riverrun.engine.prompts import LEAST_ROWS
from rollback_rig import stream, tiny

PASS = 0.04  # seconds


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def known(clock: Clock) -> Companions:
    found = Companions(clock)
    found.note_pass(LEAST_ROWS, PASS)
    return found


def left(tokens: int | None) -> Any:
    return SimpleNamespace(left=tokens)


def test_nobody_waits_before_a_pass_was_timed() -> None:
    found = Companions(Clock())
    found.ended(3)
    assert not found.worth_waiting(()) and not found.worth_waiting([left(1)]) and found.gap == 0


@pytest.mark.parametrize(("decoding", "most"), [([], PASS), ([left(9)], WAIT * PASS)])
def test_prompts_wait_while_others_are_expected(decoding: list[Any], most: float) -> None:
    """As many as have ended, and for no longer than a pass takes, or a share of it."""
    clock = Clock()
    found = known(clock)
    assert not found.worth_waiting(decoding)
    found.note_pass(LEAST_ROWS, PASS)
    found.ended(2)
    assert found.worth_waiting(decoding) and found.gap == GAP * PASS
    found.came()
    assert found.worth_waiting(decoding)
    found.came()
    assert not found.worth_waiting(decoding)
    found.came()  # more than have ended
    found.ended(1)
    assert found.worth_waiting(decoding)
    clock.now += 0.9 * most
    assert found.worth_waiting(decoding)
    clock.now += 0.2 * most
    assert not found.worth_waiting(decoding)
    found.note_pass(LEAST_ROWS, PASS)  # the wait for the next pass begins anew
    found.ended(1)
    assert found.worth_waiting(decoding)


def test_places_that_stay_empty_are_not_waited_for() -> None:
    clock = Clock()
    found = known(clock)
    found.ended(MOST_ENDS + 5)
    clock.now += 1.1 * PASS
    assert not found.worth_waiting(())


def test_requests_about_to_end_are_waited_for() -> None:
    found = known(Clock())
    assert found.worth_waiting([left(None), left(SOON)])
    assert not found.worth_waiting([left(None), left(SOON + 1)])


def test_what_a_pass_takes_follows_short_ones_and_outliers_little() -> None:
    clock = Clock()
    found = known(clock)
    found.note_pass(LEAST_ROWS + 1, PASS / 100)
    assert found.gap == GAP * PASS
    found.note_pass(1, PASS / 2)
    assert found.gap == GAP * PASS / 2
    found.note_pass(1, 1000.0)
    assert found.gap < 0.6 * GAP * PASS


class Patient(Companions):
    """Of passes that take so long that nobody comes too late."""

    def note_pass(self, rows: int, seconds: float) -> None:
        super().note_pass(rows, seconds)
        self._pass_s = SECONDS / GAP


class Hasty(Companions):
    """Of passes that take no time."""

    def note_pass(self, rows: int, seconds: float) -> None:
        super().note_pass(rows, 0.0)


@pytest.mark.parametrize(("kind", "passes"), [(Patient, [[9] * 3]), (Hasty, None)])
def test_those_who_come_back_together_share_a_pass(
    monkeypatch: pytest.MonkeyPatch, kind: type[Companions], passes: list[list[int]] | None
) -> None:
    """The first of a wave waits for as many as have ended before, as long as others keep coming."""
    monkeypatch.setattr(prompting, "Companions", kind)
    ends: queue.Queue[Any] = queue.Queue()

    def tell(events: Sequence[Event]) -> None:
        for event in events:
            if event.finished:
                ends.put(event.request)

    model = tiny("llama")
    with card(monkeypatch, model, 64, prompt_chunk=2048):
        steps = driver.Driver(watched(model, n_seqs=4), tell, lambda error: None)
        for held in (True, False):
            Watched.seen.clear()
            go = threading.Event()
            if held:  # so that nobody has ended before all have come
                steps.between_steps(partial(go.wait, SECONDS))
            for i in range(3):
                steps.submit(stream(860 + i, 9), 4, **GREEDY)
            go.set()
            assert all(ends.get(timeout=SECONDS).error is None for _ in range(3))
        assert passes is None or Watched.seen == passes
        assert sum(map(sum, Watched.seen)) == 27
        steps.close()


def decode_to_the_end_but_some(engine: Engine) -> None:
    """A request that has few tokens left."""
    request = engine.submit(stream(870, 5), 6, **GREEDY)
    while len(request.tokens) < 6 - SOON:
        engine.step()
    Watched.seen.clear()


@pytest.mark.parametrize(("kind", "passes"), [(Patient, [[9, 9]]), (Hasty, [[9], [9]])])
def test_a_prompt_waits_for_a_request_about_to_end(
    monkeypatch: pytest.MonkeyPatch, kind: type[Companions], passes: list[list[int]]
) -> None:
    """While others decode; what each gets is what it gets otherwise, too."""
    monkeypatch.setattr(prompting, "Companions", kind)
    model = tiny("llama")
    with card(monkeypatch, model, 64, prompt_chunk=2048), watched(model, n_seqs=4) as engine:
        decode_to_the_end_but_some(engine)
        asked = [engine.submit(stream(871, 9), 4, **GREEDY)]
        engine.step()
        engine.step()
        asked.append(engine.submit(stream(872, 9), 4, **GREEDY))
        finish(engine)
        assert Watched.seen == passes
    for i, request in enumerate(asked):
        alone = model.generate(stream(871 + i, 9), 4, **GREEDY)
        assert request.text == "".join(alone)


def test_long_prompts_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that is full is not the better for others."""
    monkeypatch.setattr(prompting, "Companions", Patient)
    model = tiny("llama")
    with card(monkeypatch, model, 64, prompt_chunk=2048), watched(model, n_seqs=4) as engine:
        decode_to_the_end_but_some(engine)
        engine.submit(stream(881, MAX_TOKENS), 4, **GREEDY)
        engine.step()
        engine.step()
        assert sum(map(sum, Watched.seen)) == MAX_TOKENS
        finish(engine)
