"""After warming up, what requests run is compiled, and they get what they get without."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from demo import demo
from held_engine import SECONDS
from riverrun.engine import driver as driver_module
from riverrun.engine.driver import Driver
from riverrun.engine.engine import Engine
from riverrun.engine.event import Event
from riverrun.engine.pieces import Need, Piece, gathering
from riverrun.engine.warming import warm_first, warm_up
from riverrun.graph.errors import BackendError
from spec_rig import speculation
from warm_rig import CHOICES, binds, wave

N_SEQS = 5


@pytest.mark.parametrize(
    ("kinds", "adaptive"),
    [((), True), (("mtp",), True), (("mtp",), False), (("draft",), False)],
)
def test_nothing_is_compiled_later(
    monkeypatch: pytest.MonkeyPatch, kinds: tuple[str, ...], adaptive: bool
) -> None:
    model, spec = demo(), speculation(kinds, adaptive=adaptive) if kinds else None
    with Engine(model, n_seqs=N_SEQS, n_ctx=256, spec=spec) as engine:
        warm_up(engine)
        assert engine.idle
        assert all(engine.sequences.length(seq) == 0 for seq in range(N_SEQS))
        found = binds(monkeypatch)
        for choice in CHOICES.values():
            for n in (1, 3, N_SEQS):
                wave(engine, n, (1, 5, 100, 60, 2), **choice)
            wave(engine, N_SEQS + 1, (32,), **choice)
        assert found == []
        lengths = (1, 5, 100, 60, 2)
        requests = wave(engine, 5, lengths, temperature=0)
    for i, (request, length) in enumerate(zip(requests, lengths, strict=True)):
        alone = model.generate([7 + i] * length, 8, temperature=0, ignore_eos=True, n_ctx=256)
        assert request.text == "".join(alone)


def test_plans_share_scratch_memory() -> None:
    with Engine(demo(), n_seqs=N_SEQS, n_ctx=1024) as engine:
        warm_up(engine)
        plans: list[Any] = engine.sequences.runner.bound_plans
        sizes = {id(bound.scratch): bound.scratch.nbytes for bound in plans}
    assert sum(sizes.values()) <= 1.25 * max(sizes.values())


@pytest.mark.parametrize("kinds", [(), ("mtp",)])
def test_requests_can_begin_when_little_is_compiled(
    monkeypatch: pytest.MonkeyPatch, kinds: tuple[str, ...]
) -> None:
    """What any requests have is; the other plans are pieces, each of which is compiled apart from
    what attaches it."""
    model, found = demo(), binds(monkeypatch)
    spec = speculation(kinds, adaptive=True) if kinds else None
    with gathering() as left:
        engine = Engine(model, n_seqs=N_SEQS, n_ctx=256, spec=spec)
    with engine:
        pieces = warm_first(engine, left)
        first = len(found)
        assert pieces and all(piece.order[0] > Need.SEVERAL for piece in pieces)
        assert sorted(piece.order for piece in pieces) == [piece.order for piece in pieces]
        for piece in pieces:
            before = len(found)
            piece.compile()
            assert len(found) == before
            piece.attach()
        assert len(found) > first
        found.clear()
        for choice in CHOICES.values():
            wave(engine, N_SEQS, (1, 5, 100, 60, 2), **choice)
        assert found == []


def test_without_gathering_plans_are_compiled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = binds(monkeypatch)
    with gathering() as pieces, Engine(demo(), n_seqs=2, n_ctx=64):
        assert pieces and not found
    with Engine(demo(), n_seqs=2, n_ctx=64):
        assert found


def piece(compiled: Callable[[], object], attached: Callable[[], object]) -> Piece:
    return Piece((0,), compiled, attached)


def test_no_request_waits_for_what_is_compiled_later() -> None:
    """A piece is compiled on a thread of its own and attached on the engine's, whether requests run
    or not; one that fails is left out."""
    begun, go, done = threading.Event(), threading.Event(), threading.Event()
    names: list[str] = []

    def compiled() -> None:
        begun.set()
        assert go.wait(SECONDS)

    def fails() -> None:
        raise BackendError("no such plan")

    def note(event: threading.Event | None = None) -> None:
        names.append(threading.current_thread().name)
        if event is not None:
            event.set()

    ended = threading.Event()

    def tell(events: Sequence[Event]) -> None:
        if any(event.finished for event in events):
            ended.set()

    engine = Engine(demo(), n_seqs=2, n_ctx=64)
    engine.later = [
        piece(compiled, note),
        piece(fails, note),
        piece(note, fails),
        piece(note, lambda: note(done)),
    ]
    after = list[int]()
    driver = Driver(engine, tell, lambda error: None, lambda: after.append(len(names)))
    assert begun.wait(SECONDS)
    driver.submit([1, 2, 3], 4, temperature=0, ignore_eos=True)
    assert ended.wait(SECONDS) and names == []
    go.set()
    assert done.wait(SECONDS)
    driver.close()
    assert names == ["engine", "plans", "plans", "engine"]
    assert after == [1, 4]  # behind each that could be made and attached


@pytest.mark.parametrize(("steps", "looks"), [(0, 0), (3, 3), (50, 10)])
def test_what_is_compiled_beside_requests_rests_while_they_run(
    steps: int, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as there are steps, and no longer than told."""
    slept: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append)
    monkeypatch.setattr(driver_module, "time", clock)
    driver_module.rest(9.5 * driver_module.LOOK, lambda: len(slept) < steps)
    assert len(slept) == looks


def test_closing_leaves_out_what_was_not_made() -> None:
    made: list[int] = []
    begun, go = threading.Event(), threading.Event()

    def compiled() -> None:
        begun.set()
        assert go.wait(SECONDS)

    engine = Engine(demo(), n_seqs=2, n_ctx=64)
    engine.later = [piece(compiled, lambda: made.append(0))] * 2
    driver = Driver(engine, lambda events: None, lambda error: None)
    assert begun.wait(SECONDS)
    closing = threading.Thread(target=driver.close)
    closing.start()
    with pytest.raises(RuntimeError, match="closed"):
        while True:
            driver.between_steps(lambda: None)
    go.set()
    closing.join()
    assert made == []
