"""Plans, pools and devices: what is refused before anything runs, and what memory promises."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import riverrun as rr
import riverrun.models.quant
from riverrun.backends import Backend, Pools, SplitBackend, open_backend
from riverrun.backends.base import Capabilities, Weights, aligned
from riverrun.backends.null import NullBackend
from riverrun.graph import OPS, Graph, Op, TensorSpec, dtype, host_tensor, register
from riverrun.graph.errors import BackendError, GraphError, RequestError, Unsupported

BACKENDS = ("cpu", "reference")
each_backend = pytest.mark.parametrize("device", BACKENDS)


def small() -> Graph:
    g = Graph("small")
    a, b = g.input("a", (2, 3)), g.input("b", (2, 3))
    g.output("sum", g.add(a, b))
    return g


@each_backend
def test_a_plan_is_called_with_inputs_by_name(device: str) -> None:
    plan = open_backend(device, 1).compile(small())
    a = np.arange(6).reshape(2, 3)
    first = plan(a=a, b=np.full((2, 3), 0.5))
    assert first.dtype == np.float32 and np.array_equal(first, a + 0.5)
    second = plan(a=[[1, 2, 3], [4, 5, 6]], b=np.zeros((2, 3), np.float16))
    assert second.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert np.array_equal(first, a + 0.5)


@each_backend
@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (dict(a=np.zeros((2, 3))), r"takes inputs \['a', 'b'\], got \['a'\]"),
        (dict(a=0, b=0, c=0), r"takes inputs \['a', 'b'\], got \['a', 'b', 'c'\]"),
        (
            dict(a=np.zeros((2, 3)), b=np.zeros((3, 2))),
            r"'b' should have shape \(2, 3\), got \(3, 2\)",
        ),
        (dict(a=np.zeros((2, 3)), b=0.5), r"'b' should have shape \(2, 3\), got \(\)"),
        (
            dict(a=np.zeros((2, 3)), b=np.zeros((2, 3), complex)),
            "'b' should hold f32, got complex128",
        ),
        (dict(a=np.zeros((2, 3)), b="x"), r"'b' should have shape \(2, 3\), got \(\)"),
        (dict(a=np.zeros((2, 3)), b=[["x"] * 3] * 2), "'b' should hold f32, got <U1"),
        (dict(a=[[1, 2, 3], [4, 5]], b=0), r"'a' should be an array f32\[2,3\]: "),
        (dict(a=np.zeros((2, 3)), b=[[None] * 3] * 2), "'b' should hold f32, got object"),
    ],
)
def test_calls_that_do_not_fit_are_refused(
    device: str, inputs: dict[str, np.ndarray], message: str
) -> None:
    plan = open_backend(device, 1).compile(small())
    with pytest.raises(GraphError, match=message):
        plan(**inputs)


@each_backend
def test_inputs_without_names_are_refused(device: str) -> None:
    plan = open_backend(device, 1).compile(small())
    with pytest.raises(RequestError, match=r"\['a', 'b'\] by name, as in .*; got 2 without"):
        plan(np.zeros((2, 3)), np.zeros((2, 3)))


@each_backend
@pytest.mark.parametrize(
    ("of", "given", "shown"), [("i32", [1, 1 << 31], "1 to 2147483648"), ("i8", [-129, 3], "-129")]
)
def test_numbers_out_of_range_are_refused(
    device: str, of: str, given: list[int], shown: str
) -> None:
    g = Graph()
    g.output("y", g.reshape(g.input("x", (2,), of), shape=(1, 2)))
    with pytest.raises(GraphError, match=rf"'x' should hold {of}, got {shown}"):
        open_backend(device, 1).compile(g)(x=given)


@each_backend
def test_a_refused_call_leaves_the_inputs_as_they_were(device: str) -> None:
    plan = open_backend(device, 1).compile(small())
    plan(a=np.ones((2, 3)), b=np.ones((2, 3)))
    with pytest.raises(GraphError):
        plan(a=np.zeros((2, 3)), b=np.zeros(3))
    assert plan._own is not None and np.array_equal(plan._own.inputs["a"], np.ones((2, 3)))


@each_backend
def test_fractions_are_no_indices(device: str) -> None:
    g = Graph()
    g.output("ids", g.reshape(g.input("ids", (3,), "i32"), shape=(1, 3)))
    plan = open_backend(device, 1).compile(g)
    with pytest.raises(GraphError, match=r"input 'ids' should hold i32, got float64"):
        plan(ids=np.array([0.0, 1.5, 2.0]))
    assert plan(ids=[0, 1, 2]).tolist() == [[0, 1, 2]]


@each_backend
@pytest.mark.parametrize("of", ["bf16", "q8_0"])
def test_inputs_of_stored_types_are_given_as_values(device: str, of: str) -> None:
    g = Graph()
    x = g.input("x", (4, 2, 32), of)
    g.output("y", g.view(x, axis=1, start=1, stop=2))
    values = np.random.default_rng(1).uniform(-1, 1, (4, 2, 32)).astype(np.float32)
    got = open_backend(device, 1).compile(g)(x=values)
    want = host_tensor(np.ascontiguousarray(values[:, 1:]), of)
    assert np.ascontiguousarray(got).tobytes() == want.raw.tobytes()


@each_backend
def test_several_outputs_come_by_name(device: str) -> None:
    g = Graph()
    x = g.input("x", (2, 3))
    plan = rr.compile(g, {"twice": g.add(x, x), "minus": g.neg(x)}, device=device)
    got = plan(x=np.ones((2, 3)))
    assert set(got) == {"twice", "minus"}
    assert got["twice"].max() == 2 and got["minus"].max() == -1


@each_backend
def test_an_output_may_be_an_input_or_a_constant(device: str) -> None:
    g = Graph()
    x, c = g.input("x", (2,)), g.constant(np.array([5.0, 7.0]))
    got = rr.compile(g, [x, c], device=device)(x=[1, 2])
    assert got["0"].tolist() == [1, 2] and got["1"].tolist() == [5, 7]


@each_backend
def test_a_graph_may_only_write_states(device: str) -> None:
    g = Graph()
    x = g.input("x", (2, 32))
    g.write_rows(g.state("s", (4, 32)), g.add(x, x), g.input("rows", (2,), "i32"))
    g.mul(x, x)
    backend = open_backend(device, 1)
    plan = backend.compile(g)
    assert [n.op.name for n in plan.graph.nodes if not n.is_leaf] == ["add", "write_rows"]
    pools = plan.pools()
    bound = plan.bind(plan.own_weights(), pools)
    bound.inputs["x"][...] = np.arange(64).reshape(2, 32)
    bound.inputs["rows"][...] = [3, 1]
    bound.run()
    want = np.zeros((4, 32), np.float32)
    want[[3, 1]] = 2 * np.arange(64).reshape(2, 32)
    np.testing.assert_array_equal(pools.array("s"), want)
    assert plan(x=np.ones((2, 32)), rows=[0, 1]) == {}


@each_backend
@pytest.mark.parametrize(
    ("make", "kind", "error", "message"),
    [
        (small, "prompt", BackendError, "kind should be one of step, prefill, got 'prompt'"),
        (lambda: Graph("bare"), "step", GraphError, "graph 'bare' has no outputs"),
    ],
)
def test_graphs_that_cannot_be_compiled_are_refused(
    device: str, make: Callable[[], Graph], kind: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        open_backend(device, 1).compile(make(), kind)


@pytest.fixture
def lonely() -> Iterator[str]:
    """The name of an op that only has a reference."""

    @register
    class Lonely(Op):
        """y = x"""

        name, inputs = "lonely", ("x",)

        def infer(self, x: TensorSpec) -> TensorSpec:
            return x.like()

        def reference(self, x: np.ndarray) -> np.ndarray:
            return x

    yield Lonely.name
    del OPS[Lonely.name]


def test_ops_that_no_kernel_takes_are_refused_with_a_reason(lonely: str) -> None:
    g = Graph()
    g.output("y", getattr(g, lonely)(g.input("x", (2,)), name="here"))
    assert open_backend("reference").compile(g)(x=[1, 2]).tolist() == [1, 2]
    backend = open_backend("cpu", 1)
    refusal = backend.supports(g.nodes[-1])
    assert not refusal.ok and refusal.why == "no kernel of this op"
    place = r"node 1 'here', unit/test_backend_base\.py:\d+"
    message = rf"cpu: no kernel takes lonely \({place}\): no kernel of this op"
    with pytest.raises(Unsupported, match=message):
        backend.compile(g)


@each_backend
def test_constants_need_data_that_fits(device: str) -> None:
    g = Graph()
    w = g.weight("w", TensorSpec((8,)))
    g.output("y", g.rms_norm(g.input("x", (2, 8)), w, eps=1e-6))
    backend: Backend = open_backend(device, 1)
    plan = backend.compile(g)
    with pytest.raises(GraphError, match=r"no data for constant 'w' f32\[8\]"):
        plan.bind(backend.load_weights({}), Pools({}))
    with pytest.raises(GraphError, match=r"constant 'w' should be f32\[8\], its data is f16\[8\]"):
        plan.bind(backend.load_weights({"w": host_tensor(np.ones(8), "f16")}), Pools({}))
    bound = plan.bind(backend.load_weights({"w": host_tensor(np.ones(8))}), Pools({}))
    bound.inputs["x"][...] = 3
    bound.run()
    assert np.allclose(bound.outputs["y"], 1)


@each_backend
def test_state_outlives_runs_and_belongs_to_its_pools(device: str) -> None:
    g = Graph()
    s0, idx = g.state("s", (4, 2), "bf16"), g.input("idx", (1,), "i32")
    g.output("s1", g.write_rows(s0, g.input("rows", (1, 2)), idx))
    plan = open_backend(device, 1).compile(g)
    pools = [Pools(plan.states) for _ in range(2)]
    bound = [plan.bind(plan.own_weights(), p) for p in pools]
    for step, to in enumerate((2, 0)):
        bound[0].inputs["idx"][...] = to
        bound[0].inputs["rows"][...] = step + 1
        bound[0].run()
    rows = (pools[0].array("s").astype(np.uint32) << 16).view(np.float32)
    assert rows.tolist() == [[2, 2], [0, 0], [1, 1], [0, 0]]
    assert not pools[1].array("s").any()
    pools[0].write("s", 2, 0)
    assert not pools[0].array("s")[2].any() and pools[0].array("s")[0].all()


def test_pools_are_zero_aligned_and_do_not_move() -> None:
    specs = {
        "kv": TensorSpec((4, 64), dtype("q8_0")),
        "s": TensorSpec((3, 5)),
        "none": TensorSpec((0,)),
    }
    pools = Pools(specs)
    assert pools.nbytes == 4 * 68 + 60 and not any(s.any() for s in pools.states.values())
    assert [pools.array(n).shape for n in specs] == [(4, 68), (3, 5), (0,)]
    assert np.shares_memory(pools.array("s"), pools.states["s"])
    at = {n: s.ctypes.data for n, s in pools.states.items()}
    assert all(at[n] % 64 == 0 for n in ("kv", "s"))
    small, large = pools.scratch(100), pools.scratch(5000)
    assert (small.nbytes, pools.scratch(10).nbytes) == (100, 5000)
    assert large.ctypes.data % 64 == 0 and pools.scratch(5000) is large
    assert at == {n: s.ctypes.data for n, s in pools.states.items()}


@pytest.mark.parametrize("size", [1, 63, 64, 1000])
@pytest.mark.parametrize("align", [64, 4096])
def test_aligned_bytes_are_aligned_and_zero(size: int, align: int) -> None:
    raw = aligned(size, align)
    assert raw.ctypes.data % align == 0 and raw.nbytes == size and not raw.any()


@each_backend
def test_threads_may_call_one_plan(device: str) -> None:
    """Every call gets the results of its own inputs, where inputs, scratch and outputs are shared:
    the more nodes, the longer a run during which another thread could fill the inputs."""
    g = Graph("shared")
    x, w = g.input("x", (16, 64)), g.input("w", (64,))
    y = x
    for _ in range(8):
        y = g.add(g.mul(y, w), x)
    g.output("y", y)
    plan = open_backend(device, 1).compile(g)

    def call(i: int) -> bool:
        rng = np.random.default_rng(i)
        own = rng.standard_normal((16, 64)).astype(np.float32)
        scale = rng.uniform(-1, 1, 64).astype(np.float32)
        want = own
        for _ in range(8):
            want = want * scale + own
        return np.allclose(plan(x=own, w=scale), want, rtol=1e-5, atol=1e-5)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(call, range(400)))
    finally:
        sys.setswitchinterval(interval)


def test_calls_of_one_plan_take_turns() -> None:
    """A second caller waits, and fills no input, until the first has its results."""
    plan = open_backend("cpu", 1).compile(small())
    zeros = np.zeros((2, 3), np.float32)
    plan(a=zeros, b=zeros)
    bound = plan._own
    assert bound is not None
    run, inside, go_on = bound.run, threading.Event(), threading.Event()

    def slow(rows: int | None = None) -> None:
        inside.set()
        assert go_on.wait(60)
        run(rows)

    bound.run = slow  # type: ignore[method-assign]
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(plan, a=zeros + 1, b=zeros)
        assert inside.wait(60)
        inside.clear()
        second = pool.submit(plan, a=zeros + 2, b=zeros)
        assert not inside.wait(0.2) and bound.inputs["a"].max() == 1
        go_on.set()
        assert first.result().max() == 1 and second.result().max() == 2


def test_weights_are_made_once_by_whichever_thread() -> None:
    weights, made = Weights({}), []

    def make() -> object:
        made.append(threading.get_ident())
        time.sleep(0.02)
        return object()

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: weights.once("w", make), range(8)))
    assert len(made) == 1 and all(f is found[0] for f in found)


def test_short_representations() -> None:
    plan = open_backend("cpu", 1).compile(small())
    assert repr(small()) == "<Graph 'small': 3 nodes, (a, b) -> (sum)>"
    assert (
        repr(plan) == "<CpuPlan 'small' step: 1 nodes, (a f32[2,3], b f32[2,3]) -> (sum f32[2,3])>"
    )
    assert repr(open_backend("cpu", 1)) == "<CpuBackend 'cpu', threads 1>"
    assert repr(open_backend("reference")) == "<ReferenceBackend 'reference'>"


@pytest.mark.usefixtures("all_processors")
def test_capabilities_of_backends() -> None:
    cpu, reference = open_backend("cpu", 2), open_backend("reference")
    assert cpu.capabilities == Capabilities(threads=2, prompt_exact=True)
    assert (cpu.on_host, cpu.runs_ahead, cpu.threads) == (True, False, 2)
    assert reference.capabilities == Capabilities(prompt_exact=True)
    assert Capabilities() == Capabilities(True, False, None, 512, False)


class Card(NullBackend):
    """As a card is, to those who plan."""

    capabilities = Capabilities(False, True, None, 2048, False)


def test_of_several_backends_what_holds_for_all() -> None:
    found = SplitBackend([Card(), open_backend("cpu", 1), NullBackend()]).capabilities
    assert found == Capabilities(False, False, 1, 512, False)
    assert SplitBackend([open_backend("reference"), NullBackend()]).capabilities.prompt_exact
    assert SplitBackend([Card(), Card()]).capabilities.prompt_chunk == 2048
