"""Passes through a session: row-exactness, several sequences, refusals that change nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import riverrun as rr
from demo import PROMPTS, demo
from riverrun.engine.guard import Call
from riverrun.graph.errors import BackendError, DTypeError, RequestError, SessionBusy

IDS = PROMPTS["p200"]["ids"]
SIZES = (*range(2, 18), 33, 65)


def one_by_one(threads: int, ids: list[int]) -> np.ndarray:
    session = demo(threads=threads).session(n_ctx=512)
    return np.stack([session.decode(t).copy() for t in ids])


@pytest.fixture(scope="module")
def alone() -> np.ndarray:
    """Logits of each of the first 65 tokens, evaluated one at a time by one thread."""
    return one_by_one(1, IDS[:65])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("n", SIZES)
def test_rows_do_not_depend_on_the_pass(alone: np.ndarray, n: int, threads: int) -> None:
    session = demo(threads=threads).session(n_ctx=512)
    got = session.evaluate([(0, IDS[:n])], want="all").logits
    np.testing.assert_array_equal(got, alone[:n])


def test_rows_do_not_depend_on_threads(alone: np.ndarray) -> None:
    np.testing.assert_array_equal(one_by_one(2, IDS[:65]), alone)


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_do_not_depend_on_other_sequences(alone: np.ndarray, threads: int) -> None:
    session = demo(threads=threads).session(n_ctx=512, n_seqs=4)
    others = [IDS[65:130], IDS[130:195], IDS[3:68]]
    items = [(2, IDS[:65]), (0, others[0]), (3, others[1]), (1, others[2])]
    got = session.evaluate(items, want="all").logits
    np.testing.assert_array_equal(got[:65], alone)
    last = session.evaluate([(1, [5]), (2, IDS[65:67])]).logits.copy()
    single = demo(threads=1).session(n_ctx=512)
    single.evaluate([(0, IDS[:65])])
    np.testing.assert_array_equal(last[1], single.evaluate([(0, IDS[65:67])]).logits[0])


def test_unequal_sequences_share_a_pass() -> None:
    model = demo()
    session = model.session(n_ctx=512, n_seqs=3)
    parts = {0: IDS[:7], 1: IDS[20:21], 2: IDS[40:77]}
    together = session.evaluate(list(parts.items())).logits.copy()
    for row, ids in zip(together, parts.values(), strict=True):
        fresh = model.session(n_ctx=512)
        np.testing.assert_array_equal(fresh.evaluate([(0, ids)]).logits[0], row)


def test_prefill_in_chunks_equals_one_by_one() -> None:
    ids = (IDS * 6)[:1100]
    model = demo()
    whole = model.session(n_ctx=2048).prefill(ids).copy()
    session = model.session(n_ctx=2048)
    session.prefill(ids[:700])
    np.testing.assert_array_equal(session.prefill(ids[700:]), whole)
    assert session.length() == 1100


@pytest.mark.parametrize("hidden", [False, True])
def test_a_pass_may_give_no_logits(hidden: bool) -> None:
    session = demo().session(n_ctx=512)
    found = session.evaluate([(0, IDS[:9])], want="none", hidden=hidden)
    assert found.logits.shape == (0, 6144)
    like = demo().session(n_ctx=512)
    want = like.evaluate([(0, IDS[:9])], hidden=True).hidden
    if hidden:
        np.testing.assert_array_equal(found.hidden, want)
    else:
        assert found.hidden is None
    np.testing.assert_array_equal(session.decode(IDS[9]), like.decode(IDS[9]))


def test_clear_gives_a_fresh_sequence() -> None:
    session = demo().session(n_ctx=512)
    first = session.prefill(IDS[:20]).copy()
    session.clear()
    assert session.length() == 0
    np.testing.assert_array_equal(session.prefill(IDS[:20]), first)


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_cache_types_stay_close(kind: str) -> None:
    exact = demo().session(n_ctx=512, cache_type_k="f32", cache_type_v="f32").prefill(IDS).copy()
    got = demo().session(n_ctx=512, cache_type_k=kind, cache_type_v=kind).prefill(IDS)
    # A changed last bit moves activations over rounding steps of 8 bits in later layers.
    limit = {"f32": 0.0, "f16": 0.5, "bf16": 1.0}[kind]
    assert np.abs(got - exact).max() <= limit


BAD_CALLS: list[tuple[Callable[[rr.Session], object], str]] = [
    (lambda s: s.decode(6144), "from 0 to 6143, got 6144"),
    (lambda s: s.decode(-1), "got -1"),
    (lambda s: s.evaluate([(0, [])]), "no tokens"),
    (lambda s: s.evaluate([(3, [1])]), "from 0 to 1, got 3"),
    (lambda s: s.evaluate([(0, [1]), (0, [2])]), "distinct"),
    (lambda s: s.evaluate([(0, [1] * 513)]), "1 to 512 tokens"),
    (lambda s: s.evaluate([(0, [1])], want="some"), "one of last, all, none, got 'some'"),
    (lambda s: s.evaluate([(0, [1] * 101)]), "context of 100"),
    (lambda s: s.prefill([1] * 101), "context of 100"),
    (lambda s: s.prefill([]), "no tokens"),
]


@pytest.mark.parametrize("call,message", BAD_CALLS, ids=[m for _, m in BAD_CALLS])
def test_refusals_change_nothing(call: Callable[[rr.Session], object], message: str) -> None:
    model = demo()
    session = model.session(n_ctx=100, n_seqs=2)
    session.prefill(IDS[:9])
    before = {n: session.pools.array(n).copy() for n in session.pools.specs}
    with pytest.raises(RequestError, match=message):
        call(session)
    assert session.length() == 9
    for n, was in before.items():
        np.testing.assert_array_equal(session.pools.array(n), was)
    fresh = model.session(n_ctx=100)
    fresh.prefill(IDS[:9])
    np.testing.assert_array_equal(session.decode(IDS[9]), fresh.decode(IDS[9]))


@pytest.mark.parametrize("n_ctx", [0, -5])
def test_context_sizes_are_checked(n_ctx: int) -> None:
    with pytest.raises(RequestError, match="1 or more"):
        demo().session(n_ctx=n_ctx)


def test_cache_type_and_device_names_are_checked() -> None:
    with pytest.raises(DTypeError, match="cache_type_k should be one of"):
        demo().session(cache_type_k="q9")
    with pytest.raises(BackendError, match="'tpu' is not in this build"):
        rr.load(rr.DEMO_MODEL, device="tpu")
    with pytest.raises(BackendError, match="from 1 to 1024, got -2"):
        rr.load(rr.DEMO_MODEL, device="cpu", threads=-2)


def test_a_second_thread_is_told() -> None:
    session = demo().session(n_ctx=512)
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        call = Call()
        session.guard.enter(call)
        inside.set()
        leave.wait(10)
        session.guard.leave(call)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(10)
    with pytest.raises(SessionBusy, match="another thread"):
        session.decode(1)
    leave.set()
    thread.join()
    session.decode(1)


def test_sessions_of_one_model_run_side_by_side() -> None:
    model = demo()
    want = model.session(n_ctx=512).prefill(IDS).copy()
    results: dict[int, np.ndarray] = {}

    def work(i: int) -> None:
        results[i] = model.session(n_ctx=512).prefill(IDS).copy()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 3
    for got in results.values():
        np.testing.assert_array_equal(got, want)
