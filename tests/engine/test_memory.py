"""The memories' contract: queries agree with acts, a refusal changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from riverrun.backends import Pools
from riverrun.engine.memory import (
    ROLLBACKS,
    HybridMemory,
    PagedKV,
    RecurrentMemory,
    Reservation,
    strategies,
)
from riverrun.engine.memory.checkpoint import DeviceCheckpoint, HostCheckpoint
from riverrun.engine.memory.replay import Replay
from riverrun.engine.memory.snapshots import Snapshots
from riverrun.graph import TensorSpec
from riverrun.graph.errors import RequestError

WIDTH = 8
STRATEGIES: list[type[RecurrentMemory]] = [Replay, Snapshots, HostCheckpoint, DeviceCheckpoint]
every_strategy = pytest.mark.parametrize("kind", STRATEGIES, ids=lambda kind: kind.name)


def recurrent(
    n_seqs: int = 2, kind: type[RecurrentMemory] = RecurrentMemory, window: int = 0
) -> RecurrentMemory:
    layout = kind.layout(window)
    planes = (layout.planes,) if layout.planes else ()
    pools = Pools({"ssm_state.0": TensorSpec((n_seqs * layout.rows, *planes, WIDTH))})
    return kind(n_seqs, pools, ["ssm_state.0"], window)


def grow(memory: RecurrentMemory | HybridMemory, seq: int, n: int) -> None:
    """Commit n tokens that were sure."""
    memory.reserve([Reservation(seq, n, sure=n)])
    memory.commit(seq, n)


def put(memory: RecurrentMemory, seq: int, value: float) -> None:
    """What a pass leaves as the newest state."""
    memory.pools.write("ssm_state.0", memory._place(seq), np.full(WIDTH, value, np.float32))


def test_pages_are_taken_when_needed_and_given_back() -> None:
    kv = PagedKV(2, n_pages=4, n_ctx=512)
    kv.reserve([Reservation(0, 256), Reservation(1, 1)])
    kv.commit(0, 256)
    kv.commit(1, 1)
    kv.reserve([Reservation(0, 1)])
    assert len({kv.row(0, 0) // 256, kv.row(0, 256) // 256, kv.row(1, 0) // 256}) == 3
    kv.commit(0, 0)
    kv.reserve([Reservation(0, 1)])
    kv.commit(0, 1)
    kv.remove(0, 0)
    kv.reserve([Reservation(1, 300)])
    assert kv.length(0) == 0 and kv.pending(1) == 300


def test_rows_follow_the_block_table_over_page_boundaries() -> None:
    kv = PagedKV(1, n_pages=3, n_ctx=768)
    kv.reserve([Reservation(0, 600)])
    rows = kv.rows(0, 250, 20)
    assert rows.dtype == np.int32
    assert [kv.row(0, p) for p in range(250, 270)] == rows.tolist()
    assert len(set(kv.rows(0, 0, 600).tolist())) == 600


@pytest.mark.parametrize("want", [513, 10_000])
def test_a_full_context_refuses_and_changes_nothing(want: int) -> None:
    kv = PagedKV(2, n_pages=4, n_ctx=512)
    kv.reserve([Reservation(0, 100)])
    before = kv.block_table.copy()
    with pytest.raises(RequestError, match="context of 512"):
        kv.reserve([Reservation(1, 5), Reservation(0, want)])
    assert np.array_equal(kv.block_table, before)
    assert (kv.pending(0), kv.pending(1)) == (100, 0)


def test_attention_forgets_any_suffix() -> None:
    kv = PagedKV(1, n_pages=2, n_ctx=512)
    kv.reserve([Reservation(0, 300)])
    assert kv.max_rollback(0) == 300
    assert kv.can_commit(0, 7) and not kv.can_commit(0, 301)
    assert kv.commit(0, 7) == 0
    assert kv.can_remove(0, 3) and not kv.can_remove(0, 8)
    kv.remove(0, 3)
    assert kv.length(0) == 3


def test_recurrent_state_keeps_all_or_refuses() -> None:
    memory = recurrent()
    memory.reserve([Reservation(0, 5)])
    assert not memory.can_commit(0, 4) and not memory.can_remove(0, 0)
    assert memory.max_rollback(0) == 0
    with pytest.raises(RequestError, match="cannot keep 4 of 5"):
        memory.commit(0, 4)
    assert (memory.length(0), memory.pending(0)) == (0, 5)
    memory.commit(0, 5)
    assert not memory.can_remove(0, 4)
    with pytest.raises(RequestError, match="cannot go back from 5 to 4"):
        memory.remove(0, 4)


@pytest.mark.parametrize("kind", [RecurrentMemory, *STRATEGIES], ids=lambda kind: kind.name)
def test_clearing_zeroes_only_that_sequence(kind: type[RecurrentMemory]) -> None:
    memory = recurrent(kind=kind, window=2)
    for seq in (0, 1):
        grow(memory, seq, 2)
        put(memory, seq, seq + 1)
    memory.remove(0, 0)
    assert not memory.save(0)["ssm_state.0"].any()
    assert (memory.save(1)["ssm_state.0"] == 2).all()
    assert not memory.unsettled(0) and memory.rerun(0) == 0 and memory.length(0) == 0


@every_strategy
@pytest.mark.parametrize("window", [1, 3, 8])
@pytest.mark.parametrize("pending", [1, 2, 4, 9, 20])
def test_what_can_be_forgotten_is_what_was_announced(
    kind: type[RecurrentMemory], window: int, pending: int
) -> None:
    most = {Replay: window + 1, Snapshots: window}.get(kind, pending)
    for n in range(-1, pending + 2):
        memory = recurrent(kind=kind, window=window)
        memory.reserve([Reservation(0, 2)])
        memory.commit(0, 2)
        grow(memory, 0, 10)
        memory.reserve([Reservation(0, pending)])
        assert memory.max_rollback(0) == min(most, pending)
        can = max(0, pending - most) <= n <= pending
        assert memory.can_commit(0, n) == can
        if can:
            due = memory.commit(0, n)
            assert due == memory.rerun(0) == (n if kind.reruns and n < pending else 0)
            assert memory.unsettled(0) == (kind is Replay and n > max(0, pending - most))
            assert (memory.length(0), memory.pending(0)) == (12 + n, 0)
        else:
            with pytest.raises(RequestError, match=f"cannot keep {n} of {pending} pending tokens"):
                memory.commit(0, n)
            assert (memory.length(0), memory.pending(0)) == (12, pending)
            assert memory.can_commit(0, pending)


@every_strategy
def test_sure_tokens_cost_no_rollback(kind: type[RecurrentMemory]) -> None:
    memory = recurrent(kind=kind, window=3)
    memory.reserve([Reservation(0, 100, sure=98), Reservation(1, 2)])
    assert memory.can_commit(0, 98)
    memory.commit(0, 99)
    memory.commit(1, 0)
    assert [memory.length(seq) for seq in (0, 1)] == [99, 0]


@every_strategy
def test_only_what_is_due_runs_again_and_all_of_it(kind: type[RecurrentMemory]) -> None:
    memory = recurrent(kind=kind, window=4)
    memory.reserve([Reservation(0, 5)])
    due = memory.commit(0, 3)
    for batch in (
        [Reservation(0, 1, again=due + 1)],
        [Reservation(1, 1), Reservation(0, 0, again=due + 1)],
        *([[Reservation(0, 1, again=due - 1)]] if due else []),
    ):
        with pytest.raises(RequestError, match=f"{due} committed tokens should run again"):
            memory.reserve(batch)
        assert (memory.pending(0), memory.pending(1), memory.rerun(0)) == (0, 0, due)
    memory.reserve([Reservation(0, 1, again=due)])
    assert memory.rerun(0) == 0 and memory.pending(0) == 1


@every_strategy
def test_a_lost_pass_leaves_what_was_committed(kind: type[RecurrentMemory]) -> None:
    memory = recurrent(kind=kind, window=4)
    grow(memory, 0, 6)
    put(memory, 0, 7)
    memory.reserve([Reservation(0, 3)])
    memory.lose(0)
    assert (memory.length(0), memory.pending(0), memory.rerun(0)) == (6, 0, 0)
    assert (memory.save(0)["ssm_state.0"] == 7).all()
    memory.reserve([Reservation(0, 9, sure=9)])
    memory.lose(0)
    assert (memory.length(0), memory.pending(0)) == (6, 0)
    # Only checkpoints lie where that pass does not write.
    assert memory.rerun(0) == (0 if kind.reruns else 6)
    assert (memory.save(0)["ssm_state.0"] == (7 if kind.reruns else 0)).all()


@pytest.mark.parametrize("kind", [RecurrentMemory, *STRATEGIES], ids=lambda kind: kind.name)
def test_save_restore_and_copy(kind: type[RecurrentMemory]) -> None:
    memory = recurrent(3, kind, window=2)
    grow(memory, 0, 4)
    put(memory, 0, 5)
    saved = memory.save(0)
    memory.restore(1, 4, saved)
    memory.copy(1, 2)
    assert [memory.length(seq) for seq in range(3)] == [4, 4, 4]
    for seq in range(3):
        assert memory.save(seq)["ssm_state.0"].tolist() == [5.0] * WIDTH
        assert not memory.can_remove(seq, 3) or seq == 0
    with pytest.raises(RequestError, match="should be empty to restore into, got 4 tokens"):
        memory.restore(1, 4, saved)
    for src, dst in ((0, 0), (0, 1)):
        with pytest.raises(RequestError, match=f"cannot copy sequence {src} to {dst}"):
            memory.copy(src, dst)
    memory.remove(2, 0)
    for wrong in ({}, {"ssm_state.0": np.zeros(7, np.float32)}, {"ssm_state.0": np.zeros(WIDTH)}):
        with pytest.raises(RequestError, match=r"'ssm_state\.0' should be float32"):
            memory.restore(2, 4, wrong)
    assert memory.length(2) == 0


@pytest.mark.parametrize("kind", [RecurrentMemory, *STRATEGIES], ids=lambda kind: kind.name)
def test_hybrid_is_all_or_nothing(kind: type[RecurrentMemory]) -> None:
    kv, rows = PagedKV(1, n_pages=2, n_ctx=512), recurrent(1, kind, window=2)
    both = HybridMemory([kv, rows])
    parts: Sequence[PagedKV | RecurrentMemory | HybridMemory] = (kv, rows, both)
    both.reserve([Reservation(0, 9, sure=0)])
    n = 9 - rows.max_rollback(0)
    assert both.max_rollback(0) == 9 - n and both.can_commit(0, n)
    if n:
        assert not both.can_commit(0, n - 1)
        with pytest.raises(RequestError):
            both.commit(0, n - 1)
        assert {p.pending(0) for p in parts} == {9}
    both.commit(0, 9)
    assert {p.length(0) for p in parts} == {9}
    if not rows.can_remove(0, 2):
        assert kv.can_remove(0, 2) and not both.can_remove(0, 2)
        with pytest.raises(RequestError):
            both.remove(0, 2)
        assert {p.length(0) for p in parts} == {9}
    with pytest.raises(RequestError, match="context"):
        both.reserve([Reservation(0, 600, again=both.rerun(0))])
    with pytest.raises(RequestError, match="should run again"):
        both.reserve([Reservation(0, 1, again=3)])
    assert {p.pending(0) for p in parts} == {0}
    both.remove(0, 0)
    assert {p.length(0) for p in parts} == {0}


def test_strategies_by_name() -> None:
    for name in ROLLBACKS:
        assert strategies(name, 0, on_host=True) == [RecurrentMemory]
    for kind in STRATEGIES:
        assert strategies(kind.name, 3, on_host=True) == [kind]
    assert strategies("checkpoint", 3, on_host=True) == [HostCheckpoint]
    assert strategies("checkpoint", 3, on_host=False) == [DeviceCheckpoint]
    assert strategies("auto", 3, on_host=False) == [Replay, Snapshots, DeviceCheckpoint]
    with pytest.raises(
        RequestError, match=r"rollback should be one of auto, replay, .* got 'none'"
    ):
        strategies("none", 3, on_host=True)
