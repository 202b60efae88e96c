"""Rollback on a card: every strategy leaves the state of plain decoding there, and none but the one
that is meant to moves state through host memory."""

from __future__ import annotations

import random

import pytest
from cuda_rig import Calls, needs_cuda, slow, thinned
from riverrun.backends.cuda import CudaPools
from rollback_matrix import CASES, check
from rollback_rig import STRATEGIES, forgettable, peek, plain, stream, tiny

pytestmark = needs_cuda
ON_DEVICE = [name for name in STRATEGIES if name != "checkpoint:host"]


def few(values: tuple[object, ...]) -> bool:
    """What an emulated card runs: some passes of one sequence and of four."""
    return values[1:] in ((1, 3, 4), (1, 8, 17), (4, 8, 9))


MATRIX = [
    pytest.param(*case.values, id=case.id, marks=() if few(case.values) else slow) for case in CASES
]


@pytest.mark.parametrize("strategy,n_seqs,window,t", MATRIX)
def test_every_commit_equals_plain_decoding(
    strategy: str, n_seqs: int, window: int, t: int
) -> None:
    some = sorted({0, 1, t // 2, t - 1, t})
    refused = check("cuda", strategy, n_seqs, window, t, thinned(range(t + 1), some))
    if n_seqs == 1:
        wanted = thinned(range(t + 1), some)
        assert refused == sum(t - n > forgettable(strategy, window, t) for n in wanted)


def test_what_checkpoint_means_on_a_card() -> None:
    model = tiny("qwen35", "cuda")
    for name, meant in (("checkpoint", "checkpoint:device"), ("auto", "replay")):
        plan = model.plan_session(256, rollback=name, n_rs_seq=4)
        assert plan.strategy.name == meant and plan.bytes.host == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rounds_move_no_state_through_the_host(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = tiny("qwen35", "cuda").session(256, 2, rollback=strategy, n_rs_seq=4)
    rng, rounds = random.Random(5), thinned(100, 12)
    for seq in range(2):
        session.evaluate([(seq, stream(seq)[:6])], want="none")
    with monkeypatch.context() as within:
        names = ("read", "write", "raw", "load", "array")
        calls = {name: Calls(within, CudaPools, name) for name in names}
        for _ in range(rounds):
            starts = [session.length(seq) for seq in range(2)]
            session.verify([(seq, stream(seq)[at : at + 4]) for seq, at in enumerate(starts)])
            for seq in range(2):
                session.commit(seq, rng.randint(0, 3) if session.length(seq) < 90 else 0)
        for seq in range(2):
            session.settle(seq)
        moved = {name: c.n for name, c in calls.items() if c.n}
    if strategy in ON_DEVICE:
        assert session.sequences.storage.host_bytes == 0 and moved == {}
    else:
        assert session.sequences.storage.host_bytes > 0 and moved.keys() == {"read", "write"}
    peek(session, [plain("cuda", seq) for seq in range(2)])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_saved_and_copied_sequences_go_on(strategy: str) -> None:
    session, like = (
        tiny("qwen35", "cuda").session(256, 3, rollback=strategy, n_rs_seq=4),
        plain("cuda"),
    )
    session.evaluate([(0, like.tokens[:7])], want="none")
    session.verify([(0, like.tokens[7:11])])
    session.commit(0, 2)
    session.copy(0, 1)
    session.restore(session.save(0), 2)
    for seq, keep in ((1, 3), (2, 1), (0, 0)):
        session.verify([(seq, like.tokens[9:12])])
        session.commit(seq, keep)
        assert session.length(seq) == 9 + keep
    peek(session, dict.fromkeys(range(3), like))
