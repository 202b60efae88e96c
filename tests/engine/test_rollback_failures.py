"""A pass that breaks off, before it did anything, half way, or at its end, is as if it had not
been: what was committed stays, and rounds go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from riverrun.engine.session import Session
from rollback_rig import STRATEGIES, peek, plain, tiny

WINDOW, N_SEQS = 8, 2
MODES = ("before", "first half", "second half", "after")


class Broken(Exception):
    """What a broken pass raises."""


def broken_pass(
    session: Session, monkeypatch: pytest.MonkeyPatch, mode: str, call: Callable[[], Any]
) -> None:
    """`call`, with its first pass broken off; in the modes of halves only every second state has
    been written."""
    bound = type(session.sequences.runner.bound_plans[0])
    run = bound.run

    def fail(self: Any, rows: int | None = None) -> None:
        states = session.pools.states
        before = {name: a.copy() for name, a in states.items()}
        if mode != "before":
            run(self, rows)
        if mode.endswith("half"):
            for name in sorted(states)[mode == "first half" :: 2]:
                states[name][...] = before[name]
        raise Broken

    with monkeypatch.context() as patch:
        patch.setattr(bound, "run", fail)
        with pytest.raises(Broken):
            call()


def begun(strategy: str, device: str) -> tuple[Session, list[int]]:
    """Two sequences in the middle of rounds, with something due; their lengths."""
    window = 0 if strategy == "none" else WINDOW
    rollback = "auto" if strategy == "none" else strategy
    session = tiny("qwen35", device).session(
        n_ctx=256, n_seqs=N_SEQS, rollback=rollback, n_rs_seq=window
    )
    for seq in range(N_SEQS):
        session.evaluate([(seq, plain(device, seq).tokens[: 5 + seq])], want="none")
        at = 5 + seq
        session.verify([(seq, plain(device, seq).tokens[at : at + 3])])
        session.commit(seq, 2 if window else 3)
    return session, [session.length(seq) for seq in range(N_SEQS)]


def items(session: Session, device: str, n: int, both: bool) -> list[tuple[int, list[int]]]:
    found = []
    for seq in range(N_SEQS if both else 1):
        at = session.length(seq) + session.memory.pending(seq)
        found.append((seq, plain(device, seq).tokens[at : at + n]))
    return found


def require_going_on(session: Session, device: str, lengths: list[int]) -> None:
    """Nothing is lost, and rounds give what they would have given."""
    likes = [plain(device, seq) for seq in range(N_SEQS)]
    for seq, n in enumerate(lengths):
        assert session.length(seq) == n and session.memory.pending(seq) == 0
        assert session.tokens(seq) == likes[seq].tokens[:n]
    peek(session, likes)
    for keep in (2, 4, 1):
        sizes = items(session, device, 4, both=True)
        starts = [session.length(seq) for seq in range(N_SEQS)]
        logits = session.verify(sizes).logits
        want = [like.logits(at, at + 4) for like, at in zip(likes, starts, strict=True)]
        np.testing.assert_array_equal(logits, np.concatenate(want))
        for seq in range(N_SEQS):
            session.commit(seq, keep if session.plan.options.n_rs_seq else 4)
        peek(session, likes)


CALLS: dict[str, Callable[[Session, str, bool], Any]] = {
    "evaluate": lambda s, d, both: s.evaluate(items(s, d, 3, both)),
    "verify": lambda s, d, both: s.verify(items(s, d, 4, both)),
    "verify much": lambda s, d, both: s.verify(items(s, d, 20, both)),
}


@pytest.mark.parametrize("both", [False, True], ids=["one", "both"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("strategy", [*STRATEGIES, "none"])
def test_a_broken_pass(
    strategy: str, call: str, mode: str, both: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, lengths = begun(strategy, "cpu")
    for _ in range(2):
        broken_pass(session, monkeypatch, mode, lambda: CALLS[call](session, "cpu", both))
    require_going_on(session, "cpu", lengths)


@pytest.mark.parametrize("mode", ("before", "second half"))
@pytest.mark.parametrize("strategy", [*STRATEGIES, "none"])
def test_a_broken_pass_on_the_reference(
    strategy: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, lengths = begun(strategy, "reference")
    call = CALLS["verify"]
    broken_pass(session, monkeypatch, mode, lambda: call(session, "reference", True))
    require_going_on(session, "reference", lengths)


@pytest.mark.parametrize("n", [1, 6, 20])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("strategy", [*STRATEGIES, "none"])
def test_a_broken_pass_after_pending_ones(
    strategy: str, mode: str, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, lengths = begun(strategy, "cpu")
    session.verify(items(session, "cpu", 3, True))
    session.verify(items(session, "cpu", 1, False))
    broken_pass(session, monkeypatch, mode, lambda: session.verify(items(session, "cpu", n, True)))
    require_going_on(session, "cpu", lengths)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("strategy", ["replay", "checkpoint:host", "checkpoint:device"])
def test_a_broken_settling(strategy: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session, lengths = begun(strategy, "cpu")
    for call in (session.settle, session.save, lambda: session.copy(0, 1)):
        broken_pass(session, monkeypatch, mode, call)
    require_going_on(session, "cpu", lengths)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("strategy", [*STRATEGIES, "none"])
def test_running_again_breaks_off_too(
    strategy: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More tokens are due than one pass takes, and the second of these passes fails as well."""
    window = 0 if strategy == "none" else WINDOW
    rollback = "auto" if strategy == "none" else strategy
    session = tiny().session(n_ctx=600, rollback=rollback, n_rs_seq=window)
    like = plain()
    session.prefill(like.tokens[:520])
    for _ in range(2):
        broken_pass(
            session, monkeypatch, mode, lambda: session.evaluate([(0, like.tokens[520:523])])
        )
        broken_pass(session, monkeypatch, mode, session.settle) if session.memory.rerun(0) else None
    peek(session, [like])
    logits = session.verify([(0, like.tokens[520:524])]).logits
    np.testing.assert_array_equal(logits, like.logits(520, 524))
