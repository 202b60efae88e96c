"""An exception at any line of a session's call: other sequences go on right, and the one concerned
is as it was, is as the call would have left it, or says that it is lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import riverrun as rr
from engine_rig import finish
from interrupts import Struck, lines, strike
from riverrun.engine.request import Request
from riverrun.graph.errors import RequestError, SequenceLost, SessionBusy
from rollback_rig import STRATEGIES, stream, tiny

TEXT = {0: stream(0, 40), 1: stream(1, 40)}
HELD = {0: 11, 1: 7}


@cache
def wanted(tokens: tuple[int, ...]) -> bytes:
    """The logits after a text that was evaluated without interruption."""
    session = tiny().session(64)
    return session.prefill(list(tokens))[-64:].tobytes()


def fresh(session: rr.Session) -> None:
    """Both sequences hold the start of their texts."""
    for seq, n in HELD.items():
        session.clear(seq)
        session.prefill(TEXT[seq][:n], seq)


def pending(session: rr.Session, n: int = 3) -> None:
    session.verify([(0, TEXT[0][11 : 11 + n])], sure=[1])


def commit(session: rr.Session) -> Callable[[], object]:
    pending(session)
    return lambda: session.commit(0, 2)


def after_commit(session: rr.Session) -> Callable[[], object]:
    pending(session)
    session.commit(0, 1)
    return lambda: session.evaluate([(0, TEXT[0][12:14])])


def copy(session: rr.Session) -> Callable[[], object]:
    session.clear(1)
    return lambda: session.copy(0, 1)


def restore(session: rr.Session) -> Callable[[], object]:
    data = session.save(0)
    session.clear(0)
    return lambda: session.restore(data, 0)


def append(session: rr.Session) -> Callable[[], object]:
    session.append(0, TEXT[0][11:13])
    return lambda: session.evaluate([(0, TEXT[0][13:14])])


def settle(session: rr.Session) -> Callable[[], object]:
    pending(session)
    session.commit(0, 2)
    return lambda: session.settle(0)


CALLS: dict[str, Callable[[rr.Session], Callable[[], object]]] = {
    "evaluate": lambda s: lambda: s.evaluate([(0, TEXT[0][11:13]), (1, TEXT[1][7:8])]),
    "verify": lambda s: lambda: s.verify([(0, TEXT[0][11:13])]),
    "commit": commit,
    "after_commit": after_commit,
    "prefill": lambda s: lambda: s.prefill(TEXT[0][11:30]),
    "clear": lambda s: lambda: s.clear(0),
    "remove": lambda s: lambda: s.remove(0, 0),
    "reuse": lambda s: lambda: s.reuse([*TEXT[0][:5], 1, 2]),
    "append": append,
    "settle": settle,
    "copy": copy,
    "save": lambda s: lambda: s.save(0),
    "restore": restore,
}


def require_right(session: rr.Session, seq: int, text: list[int]) -> None:
    """A sequence holds the start of its text, and goes on from there; or it is lost, and can be
    cleared and used."""
    sequences = session.sequences
    if sequences.is_lost(seq):
        with pytest.raises(SequenceLost, match=f"sequence {seq} was lost"):
            session.evaluate([(seq, text[:1])])
        session.clear(seq)
        assert session.length(seq) == 0
        n = 0
    else:
        if sequences.memory.pending(seq):
            sequences.drop_pending(seq)
        n = session.length(seq)
        assert session.tokens(seq) == text[:n]
    logits = session.evaluate([(seq, text[n : n + 2])]).logits[0]
    assert logits[-64:].tobytes() == wanted(tuple(text[: n + 2]))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("call", CALLS)
def test_an_exception_at_any_line_of_a_call(
    call: str, strategy: str, request: pytest.FixtureRequest
) -> None:
    session = tiny().session(64, 2, rollback=strategy, n_rs_seq=3)

    def prepare() -> Callable[[], object]:
        fresh(session)
        return CALLS[call](session)

    prepare()()  # plans are compiled
    struck = 0
    # Every other line: the lines between are for the strategies beside it.
    for _ in lines(prepare, step=2, first=STRATEGIES.index(strategy) % 2):
        struck += 1
        other = TEXT[0] if call == "copy" and session.sequences.is_lost(1) is False else TEXT[1]
        if call == "copy" and not session.sequences.is_lost(1) and session.length(1):
            other = TEXT[0]
        elif call == "copy":
            other = TEXT[1]
        require_right(session, 1, other)
        require_right(session, 0, TEXT[0])
    assert struck > 5


def test_a_struck_session_is_not_busy() -> None:
    session = tiny().session(64, 2, n_rs_seq=3)
    fresh(session)
    at = 0
    while strike(lambda: session.append(0, [1]), at):
        try:
            session.settle(0)
        except SequenceLost:
            session.clear(0)
        except SessionBusy:  # pragma: no cover
            pytest.fail(f"busy after line {at}")
        at += 1
    assert at > 5


KINDS: dict[str, dict[str, Any]] = {
    "device": {"temperature": 0.0},
    "host": {"temperature": 0.0, "repeat_penalty": 1.2},
    "sampled": {"seed": 4, "temperature": 0.9},
    "drafts": {"temperature": 0.0, "speculative": "ngram-mod"},
}


@cache
def alone(kind: str) -> list[int]:
    options = {**KINDS[kind], "speculative": None}
    return tiny().generate(TEXT[0][:9], 12, ignore_eos=True, n_ctx=64, **options).result.tokens


def begin(engine: rr.Engine, steps: int) -> dict[str, Request]:
    asked = {
        kind: engine.submit(TEXT[0][:9], 12, ignore_eos=True, **{"speculative": None, **options})
        for kind, options in KINDS.items()
    }
    for _ in range(steps):
        engine.step()
    return asked


@pytest.mark.parametrize("steps", [0, 2, 4, 6])
@pytest.mark.parametrize("strategy", ["replay", "checkpoint:host"])
def test_an_exception_at_any_line_of_a_step(strategy: str, steps: int) -> None:
    """Requests that a step leaves whole go on to the same text; the others say that they are lost,
    and new ones take their places."""
    engine = rr.Engine(tiny(), n_seqs=4, n_ctx=64, draft_max=3, rollback=strategy)
    finish_once(engine)
    asked: dict[str, Request] = {}
    lost = 0

    def prepare() -> Callable[[], object]:
        nonlocal asked
        finish(engine)
        asked = begin(engine, steps)
        return engine.step

    for _ in lines(prepare, step=7, first=steps):
        finish(engine)
        for kind, request in asked.items():
            assert request.result is not None
            if request.result.finish_reason == "error":
                assert "lost" in request.result.error
                assert request.tokens == alone(kind)[: len(request.tokens)]
                lost += 1
            else:
                assert request.tokens == alone(kind)
    fresh_ones = begin(engine, 0)
    finish(engine)
    for kind, request in fresh_ones.items():
        assert request.tokens == alone(kind)
    assert lost or steps == 0
    engine.close()


def finish_once(engine: rr.Engine) -> None:
    """Plans are compiled, and drafters opened."""
    begin(engine, 0)
    finish(engine)


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_a_generation_goes_on_after_an_interrupt(taken: int) -> None:
    model = tiny()
    want = model.generate(TEXT[0][:9], 12, ignore_eos=True, n_ctx=64, temperature=0.0).result
    generation = model.generate(TEXT[0][:9], 12, ignore_eos=True, n_ctx=64, temperature=0.0)
    while len(generation.tokens) < taken:
        generation.engine.step()
    assert strike(generation.engine.step, 1)
    assert generation.result.tokens == want.tokens


def test_refusals_are_no_interruptions() -> None:
    session = tiny().session(64, 2, n_rs_seq=3)
    fresh(session)
    with pytest.raises(RequestError):
        session.commit(0, 5)
    with pytest.raises(RequestError):
        session.evaluate([(0, [1] * 60)])
    assert not session.sequences.is_lost(0)
    assert np.isfinite(session.decode(TEXT[0][11])).all()
    assert issubclass(Struck, KeyboardInterrupt)
