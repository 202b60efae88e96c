"""The memories' contract: queries agree with acts, a refusal changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
from riverrun.backends import Pools
from riverrun.engine.memory import HybridMemory, PagedKV, RecurrentMemory
from riverrun.graph import TensorSpec
from riverrun.graph.errors import RequestError


def recurrent(n_seqs: int = 2) -> RecurrentMemory:
    pools = Pools({"ssm_state.0": TensorSpec((n_seqs, 8))})
    return RecurrentMemory(n_seqs, pools, ["ssm_state.0"])


def test_pages_are_taken_when_needed_and_given_back() -> None:
    kv = PagedKV(2, n_pages=4, n_ctx=512)
    kv.reserve([(0, 256), (1, 1)])
    kv.commit(0, 256)
    kv.commit(1, 1)
    kv.reserve([(0, 1)])
    assert len({kv.row(0, 0) // 256, kv.row(0, 256) // 256, kv.row(1, 0) // 256}) == 3
    kv.commit(0, 0)
    kv.reserve([(0, 1)])
    kv.commit(0, 1)
    kv.remove(0, 0)
    kv.reserve([(1, 300)])
    assert kv.length(0) == 0 and kv.pending(1) == 300


def test_rows_follow_the_block_table_over_page_boundaries() -> None:
    kv = PagedKV(1, n_pages=3, n_ctx=768)
    kv.reserve([(0, 600)])
    rows = kv.rows(0, 250, 20)
    assert rows.dtype == np.int32
    assert [kv.row(0, p) for p in range(250, 270)] == rows.tolist()
    assert len(set(kv.rows(0, 0, 600).tolist())) == 600


@pytest.mark.parametrize("want", [513, 10_000])
def test_a_full_context_refuses_and_changes_nothing(want: int) -> None:
    kv = PagedKV(2, n_pages=4, n_ctx=512)
    kv.reserve([(0, 100)])
    before = kv.block_table.copy()
    with pytest.raises(RequestError, match="context of 512"):
        kv.reserve([(1, 5), (0, want)])
    assert np.array_equal(kv.block_table, before)
    assert (kv.pending(0), kv.pending(1)) == (100, 0)


def test_attention_forgets_any_suffix() -> None:
    kv = PagedKV(1, n_pages=2, n_ctx=512)
    kv.reserve([(0, 300)])
    assert kv.max_rollback(0) == 300
    assert kv.can_commit(0, 7) and not kv.can_commit(0, 301)
    kv.commit(0, 7)
    assert kv.can_remove(0, 3) and not kv.can_remove(0, 8)
    kv.remove(0, 3)
    assert kv.length(0) == 3


def test_recurrent_state_keeps_all_or_refuses() -> None:
    memory = recurrent()
    memory.reserve([(0, 5)])
    assert not memory.can_commit(0, 4) and not memory.can_remove(0, 0)
    with pytest.raises(RequestError, match="cannot keep 4 of 5"):
        memory.commit(0, 4)
    assert (memory.length(0), memory.pending(0)) == (0, 5)
    memory.commit(0, 5)
    assert not memory.can_remove(0, 4)
    with pytest.raises(RequestError, match="cannot go back from 5 to 4"):
        memory.remove(0, 4)


def test_clearing_zeroes_only_that_sequence() -> None:
    memory = recurrent()
    memory.pools.array("ssm_state.0")[...] = 1
    for seq in (0, 1):
        memory.reserve([(seq, 2)])
        memory.commit(seq, 2)
    memory.remove(0, 0)
    state = memory.pools.array("ssm_state.0")
    assert not state[0].any() and state[1].all()


def test_hybrid_is_all_or_nothing() -> None:
    kv, rows = PagedKV(1, n_pages=2, n_ctx=512), recurrent(1)
    both = HybridMemory([kv, rows])
    both.reserve([(0, 4)])
    assert both.max_rollback(0) == 0 and not both.can_commit(0, 3)
    with pytest.raises(RequestError):
        both.commit(0, 3)
    assert kv.pending(0) == rows.pending(0) == both.pending(0) == 4
    both.commit(0, 4)
    assert kv.length(0) == rows.length(0) == both.length(0) == 4
    assert not both.can_remove(0, 2)
    with pytest.raises(RequestError):
        both.remove(0, 2)
    assert kv.length(0) == 4
    with pytest.raises(RequestError, match="context"):
        both.reserve([(0, 600)])
    assert kv.pending(0) == rows.pending(0) == both.pending(0) == 0
