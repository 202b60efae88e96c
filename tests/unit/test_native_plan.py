"""The native executor: failures, shared pools, threads, and runs without the interpreter's lock."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
import riverrun.models.quant  # noqa: F401
from one_op import check_refusals
from riverrun.backends.base import BoundPlan, Pools
from riverrun.backends.cpu import BoundCpu, CpuBackend
from riverrun.graph import Graph, HostTensor, TensorSpec
from riverrun.graph.codec import encode
from riverrun.graph.dtype import dtype
from riverrun.graph.errors import BackendError

THREADS = (1, 2, 4)
many_threads = pytest.mark.parametrize("threads", THREADS)
rng = np.random.default_rng(7)


def backend_of(threads: int) -> CpuBackend:
    """With that many threads, whatever the processors."""
    return CpuBackend(threads, oversubscribe=True)


def bind(backend: CpuBackend, g: Graph, pools: Pools | None = None) -> BoundCpu:
    plan = backend.compile(g)
    return plan.bind(plan.own_weights(), pools or Pools(plan.states))


def wide_graph(depth: int = 6, n: int = 256, width: int = 512) -> Graph:
    """Nodes large enough for every thread, with small ones for a single thread between them."""
    g = Graph("wide")
    x = g.input("x", (n, width))
    row = g.constant(np.linspace(0.5, 1.5, width), "row")
    for i in range(depth):
        y = g.silu(x, name=f"silu.{i}")
        row = g.scale(row, factor=0.5, bias=0.5)
        x = g.rms_norm(g.add(x, y), row, eps=1e-5)
    g.output("y", x)
    return g


def lookup_chain(before: int = 3, after: int = 3) -> Graph:
    """A chain of nodes that one thread runs each, with a lookup that may fail in the middle."""
    g = Graph("chain")
    table = g.constant(np.arange(20.0).reshape(10, 2), "table")
    x = g.input("x", (3, 2))
    for i in range(before):
        x = g.neg(x, name=f"before.{i}")
    rows = g.get_rows(table, g.input("ids", (3,), "i32"), name="lookup")
    y = g.add(rows, x)
    for i in range(after):
        y = g.scale(y, factor=2.0, name=f"after.{i}")
    g.output("y", y)
    return g


def within(seconds: float, job: Any) -> None:
    """Run a job in a thread and fail, rather than hang, when it does not end."""
    failed: list[BaseException] = []

    def guarded() -> None:
        try:
            job()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), f"still running after {seconds} s"
    if failed:
        raise failed[0]


@many_threads
def test_a_failing_kernel_names_op_value_node_and_line(threads: int) -> None:
    bound = bind(backend_of(threads), lookup_chain())
    bound.inputs["ids"][...] = [1, 10, 2]

    def run() -> None:
        with pytest.raises(BackendError) as raised:
            bound.run()
        message = str(raised.value)
        assert message.startswith("get_rows: ") and "10" in message
        assert "'lookup'" in message and "test_native_plan.py:" in message

    within(60, run)


@many_threads
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_a_failure_among_single_thread_nodes_does_not_hang(threads: int, place: str) -> None:
    lengths = {"first": (0, 6), "middle": (3, 3), "last": (6, 0)}
    bound = bind(backend_of(threads), lookup_chain(*lengths[place]))

    def run() -> None:
        for _ in range(200):
            bound.inputs["ids"][...] = [0, -1, 0]
            with pytest.raises(BackendError, match=r"get_rows"):
                bound.run()
            bound.inputs["ids"][...] = [0, 9, 0]
            bound.run()

    within(60, run)


@many_threads
def test_a_failure_between_nodes_of_all_threads_does_not_hang(threads: int) -> None:
    g = Graph("wide lookup")
    table = g.constant(rng.standard_normal((10, 512)), "table")
    x = g.silu(g.input("x", (256, 512)))
    rows = g.get_rows(table, g.input("ids", (256,), "i32"), name="lookup")
    g.output("y", g.silu(g.add(g.silu(rows), x)))
    bound = bind(backend_of(threads), g)

    def run() -> None:
        for i in range(50):
            bound.inputs["ids"][...] = 3
            bound.inputs["ids"][i] = 77
            with pytest.raises(BackendError, match=r"get_rows: .*77"):
                bound.run()
            bound.inputs["ids"][i] = 4
            bound.run()

    within(60, run)


def test_a_failed_run_leaves_the_plan_usable() -> None:
    bound = bind(backend_of(2), lookup_chain())
    bound.inputs["ids"][...] = [0, 1, 2]
    bound.run()
    before = bound.outputs["y"].copy()
    bound.inputs["ids"][...] = [0, 1, 99]
    with pytest.raises(BackendError):
        bound.run()
    bound.inputs["ids"][...] = [0, 1, 2]
    bound.run()
    assert bound.outputs["y"].tobytes() == before.tobytes()


def test_the_first_failing_node_is_reported() -> None:
    g = Graph()
    table = g.constant(np.ones((4, 2)), "table")
    ids = g.input("ids", (2,), "i32")
    one, two = (g.get_rows(table, ids, name=n) for n in ("first", "second"))
    g.output("y", g.add(one, two))
    bound = bind(backend_of(2), g)
    bound.inputs["ids"][...] = 4
    with pytest.raises(BackendError, match=r"'first'"):
        bound.run()


def test_repeated_runs_are_equal_on_any_number_of_threads() -> None:
    x = rng.standard_normal((256, 512)).astype(np.float32)
    want = b""
    for threads in THREADS:
        bound = bind(backend_of(threads), wide_graph())
        for _ in range(30):
            bound.inputs["x"][...] = x
            bound.run()
            got = bound.outputs["y"].tobytes()
            want = want or got
            assert got == want


def products_graph(depth: int = 3, n: int = 2, width: int = 512) -> Graph:
    """Products that threads share piece by piece, small nodes of one thread between them."""
    g = Graph("products")
    x = g.input("x", (n, width))
    row = g.constant(np.ones(width), "row")
    made = np.random.default_rng(3)
    for i in range(depth):
        kind = TensorSpec((width + 40 * i, width), dtype("q8_0"))
        raw = encode(kind.dtype, made.standard_normal(kind.shape).astype(np.float32) / 20)
        w = g.constant(HostTensor(kind, raw.reshape(-1).view(np.uint8)), f"w.{i}")
        y = g.view(g.mul_mat(x, w), axis=1, start=0, stop=width)
        x = g.rms_norm(g.add(x, y), row, eps=1e-5)
    g.output("y", x)
    return g


def test_products_are_equal_on_any_number_of_threads() -> None:
    x = rng.standard_normal((2, 512)).astype(np.float32)
    want = b""
    for threads in (1, 2, 3, 5):
        bound = bind(backend_of(threads), products_graph())
        for _ in range(20):
            bound.inputs["x"][...] = x
            bound.run()
            got = bound.outputs["y"].tobytes()
            want = want or got
            assert got == want


def test_more_threads_than_a_plan_was_made_for() -> None:
    bound = bind(backend_of(1), wide_graph())
    bound.pool = backend_of(2).pool
    with pytest.raises(BackendError, match="fewer threads"):
        bound.run()


def test_small_plans_run_many_times() -> None:
    bound = bind(backend_of(2), lookup_chain())
    bound.inputs["x"][...] = 1
    bound.inputs["ids"][...] = [1, 2, 3]
    want = 8 * (np.array([[2, 3], [4, 5], [6, 7]]) - 1.0)
    within(60, lambda: [bound.run() for _ in range(5000)])
    assert np.array_equal(bound.outputs["y"], want)


@many_threads
def test_a_plan_of_single_thread_nodes_only(threads: int) -> None:
    g = Graph()
    x = g.input("x", (2, 2))
    for _ in range(10):
        x = g.scale(x, factor=1.0, bias=1.0)
    g.output("y", x)
    bound = bind(backend_of(threads), g)
    within(60, bound.run)
    assert np.array_equal(bound.outputs["y"], np.full((2, 2), 10.0))


def test_a_plan_without_nodes() -> None:
    g = Graph()
    g.output("y", g.reshape(g.input("x", (2, 3)), shape=(3, 2)))
    bound = bind(backend_of(2), g)
    bound.inputs["x"][...] = np.arange(6).reshape(2, 3)
    bound.run()
    assert bound.outputs["y"].tolist() == [[0, 1], [2, 3], [4, 5]]


def counter(step: int, n: int) -> Graph:
    """Adds step to every row of the shared state, by way of n rows of scratch."""
    g = Graph(f"counter {step}")
    s0, idx = g.state("s", (4, 64)), g.input("idx", (4,), "i32")
    pad = g.scale(g.input("x", (n, 64)), factor=1.0, bias=float(step))
    now = g.add(s0, g.view(pad, axis=0, start=0, stop=4))
    g.output("s", g.write_rows(s0, now, idx))
    return g


def test_plans_that_share_pools_share_state_and_scratch() -> None:
    backend = backend_of(2)
    pools = Pools(backend.compile(counter(1, 4)).states)
    small, large = (bind(backend, counter(k, n), pools) for k, n in ((1, 4), (10, 512)))
    for bound in (small, large):
        bound.inputs["idx"][...] = range(4)
    for bound in (small, large, small, small, large):
        bound.run()
    assert np.array_equal(pools.array("s"), np.full((4, 64), 23.0))
    assert np.shares_memory(small.outputs["s"], large.outputs["s"])
    another = bind(backend, counter(100, 8), pools)
    assert np.shares_memory(another.scratch, large.scratch)


def test_rows_beyond_the_real_ones_are_left_alone() -> None:
    g = Graph()
    x = g.input("x", (6, 8))
    g.output("y", g.rms_norm(g.neg(x), eps=1e-6))
    bound = bind(backend_of(2), g)
    bound.inputs["x"][...] = rng.standard_normal((6, 8))
    bound.run()
    whole = bound.outputs["y"].copy()
    bound.outputs["y"][...] = 7
    bound.run(4)
    assert np.array_equal(bound.outputs["y"][:4], whole[:4]) and (bound.outputs["y"][4:] == 7).all()


def test_profile_runs_and_times_every_node() -> None:
    bound = bind(backend_of(2), lookup_chain())
    bound.inputs["ids"][...] = [1, 2, 3]
    times = bound.profile()
    assert [label for label, _ in times] == bound.plan.labels
    assert len(times) == 8 and all(ns >= 0 for _, ns in times) and sum(ns for _, ns in times) > 0
    bound.inputs["ids"][...] = 10
    with pytest.raises(BackendError, match=r"get_rows"):
        bound.profile()


def test_other_python_threads_run_during_a_run() -> None:
    bound = bind(backend_of(1), wide_graph(depth=60, n=1024))
    ticks, stop, interval = [], threading.Event(), sys.getswitchinterval()

    def tick() -> None:
        while not stop.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.0005)

    # With so long an interval nobody is made to give the lock up: only a run that releases it
    # lets the other thread go on.
    sys.setswitchinterval(60)
    thread = threading.Thread(target=tick)
    try:
        thread.start()
        began = time.monotonic()
        for _ in range(3):
            bound.run()
        ended = time.monotonic()
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()
    inside = [t for t in ticks if began < t < ended]
    assert len(inside) >= 5


def test_two_python_threads_run_two_plans_of_one_backend() -> None:
    backend, runs = backend_of(2), 40
    inputs = [rng.standard_normal((256, 512)).astype(np.float32) for _ in range(2)]
    bounds: list[BoundPlan] = [bind(backend, wide_graph(depth=2)) for _ in range(2)]
    want = []
    for bound, x in zip(bounds, inputs, strict=True):
        bound.inputs["x"][...] = x
        bound.run()
        want.append(bound.outputs["y"].copy())
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(runs):
            bounds[i].run()
            if not np.array_equal(bounds[i].outputs["y"], want[i]):
                wrong.append(i)

    def both() -> None:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    within(120, both)
    assert not wrong


def test_a_failure_in_one_thread_does_not_reach_the_other() -> None:
    backend = backend_of(2)
    good, bad = (bind(backend, lookup_chain()) for _ in range(2))
    good.inputs["ids"][...] = 1
    bad.inputs["ids"][...] = 11
    outcomes: dict[str, list[bool]] = {"good": [], "bad": []}

    def work(name: str, bound: BoundPlan) -> None:
        for _ in range(300):
            try:
                bound.run()
                outcomes[name].append(True)
            except BackendError:
                outcomes[name].append(False)

    def both() -> None:
        jobs = (("good", good), ("bad", bad))
        threads = [threading.Thread(target=work, args=job) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    within(120, both)
    assert outcomes["good"] == [True] * 300 and outcomes["bad"] == [False] * 300


def test_backends_come_and_go() -> None:
    def work() -> None:
        for i in range(20):
            bound = bind(backend_of(1 + i % 4), lookup_chain())
            bound.inputs["ids"][...] = 2
            bound.run()
            assert np.isfinite(bound.outputs["y"]).all()

    within(60, work)


def test_buffers_outlive_the_arrays_that_python_dropped() -> None:
    backend = backend_of(2)
    bound = bind(backend, lookup_chain())
    native, y = bound.native, bound.outputs["y"]
    bound.inputs["ids"][...] = [1, 2, 3]
    bound.inputs["x"][...] = 0
    pool = backend.pool
    del bound, backend
    assert native.run(pool, 1 << 62) == ""
    assert np.array_equal(y, 8.0 * np.array([[2, 3], [4, 5], [6, 7]]))


def test_a_refused_product_says_each_reason_once() -> None:
    check_refusals(CpuBackend())
