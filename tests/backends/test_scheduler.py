"""The scheduler: where nodes go and why, what is copied, and that results stay the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import riverrun as rr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import graphs, leaf_values
from refusing import Without
from riverrun.backends import Backend, Plan, Pools, open_backend
from riverrun.backends.null import NullBackend
from riverrun.backends.scheduler import SplitBackend, SplitPlan
from riverrun.engine import Model
from riverrun.graph import OPS, Graph, Op, TensorSpec, Value, dtype, host_tensor, register
from riverrun.graph.errors import BackendError, GraphError, Unsupported
from riverrun.models import load_file
from tiny_models import VARIANTS

REFERENCE = open_backend("reference")
CPU = open_backend("cpu", 1)


def split(graph: Graph, *backends: Backend, lives_on: dict[str, int] | None = None) -> SplitPlan:
    return SplitBackend(backends, lives_on).compile(graph)


def causes(plan: SplitPlan) -> dict[str, tuple[int, str]]:
    """Name of each node -> its backend and the cause."""
    nodes = plan.placement.graph.nodes
    return {nodes[i].name: (p.backend, p.cause) for i, p in plan.placement.nodes.items()}


def layer() -> Graph:
    """in -> product with w -> norm -> activation -> sum with in."""
    g = Graph("layer")
    x = g.input("x", (3, 64))
    h = g.mul_mat(x, g.constant(np.eye(64) * 2, "w"), name="product")
    h = g.silu(g.rms_norm(h, eps=1e-6, name="norm"), name="gate")
    g.output("y", g.add(h, x, name="sum"))
    return g


def random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def same(plan: Plan, whole: Plan, runs: Sequence[dict[str, np.ndarray]], exact: bool) -> None:
    """The outputs of several runs of two plans are equal."""
    for inputs in runs:
        got, want = plan(**inputs), whole(**inputs)
        got, want = (r if isinstance(r, dict) else {"": r} for r in (got, want))
        assert got.keys() == want.keys()
        for name in want:
            if exact:
                np.testing.assert_array_equal(got[name], want[name])
            else:
                np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-6)


def test_an_op_that_one_backend_lacks_runs_on_the_next() -> None:
    first, second = Without(CPU, "rms_norm"), Without(REFERENCE)
    plan = split(layer(), first, second)
    assert causes(plan) == {
        "product": (0, "weights"),
        "norm": (1, "only backend"),
        "gate": (0, "neighbour"),
        "sum": (0, "neighbour"),
    }
    assert first.compiled == [["mul_mat"], ["silu", "add"]] and second.compiled == [["rms_norm"]]
    assert [(c.source, c.target, str(c.spec)) for c in plan.copies] == [
        (0, 1, "f32[3,64]"),
        (1, 2, "f32[3,64]"),
    ]
    same(plan, CPU.compile(layer()), [{"x": random(i, 3, 64)} for i in range(2)], exact=False)


def test_one_backend_that_takes_all_gets_all() -> None:
    plan = split(layer(), CPU, REFERENCE)
    assert len(plan.segments) == 1 and plan.copies == []
    same(plan, CPU.compile(layer()), [{"x": random(0, 3, 64)}], exact=True)


def test_names_with_commas_make_a_split_device() -> None:
    plan = rr.compile(layer(), device="cpu,reference")
    assert isinstance(plan, SplitPlan) and [b.name for b in plan.backends] == ["cpu", "reference"]
    assert open_backend("reference, cpu", 1).name == "reference,cpu"
    assert open_backend("reference,cpu", 1).threads == 1
    with pytest.raises(BackendError, match="device 'tpu' is not in this build"):
        open_backend("cpu,tpu")
    with pytest.raises(BackendError, match="at least one backend"):
        SplitBackend([])


def test_weights_pin_their_nodes() -> None:
    plan = split(layer(), CPU, REFERENCE, lives_on={"w": 1})
    assert causes(plan)["product"] == (1, "weights")
    assert {causes(plan)[name] for name in ("norm", "gate", "sum")} == {(1, "layer")}
    same(plan, CPU.compile(layer()), [{"x": random(1, 3, 64)}], exact=False)


def test_a_weight_where_its_node_is_refused_does_not_hold_it() -> None:
    plan = split(layer(), CPU, Without(REFERENCE, "mul_mat"), lives_on={"w": 1})
    assert causes(plan)["product"] == (0, "neighbour")


def test_the_largest_weight_decides() -> None:
    g = Graph()
    table = g.constant(np.ones((64, 8)), "table")
    g.output("y", g.get_rows(table, g.constant(np.array([3, 1], np.int32), "ids"), name="rows"))
    plan = split(g, CPU, REFERENCE, lives_on={"ids": 0, "table": 1})
    assert causes(plan) == {"rows": (1, "weights")}


def chain() -> Graph:
    """A table's rows, then three layers that each add a product to what comes; a shared factor."""
    g = Graph("chain")
    x = g.get_rows(g.constant(random(0, 8, 64), "table"), g.input("ids", (3,), "i32"), name="rows")
    shared = g.constant(random(1, 64), "shared")
    for i in range(3):
        product = g.mul_mat(x, g.constant(random(i, 64, 64), f"w{i}"), name=f"product{i}")
        x = g.add(x, g.mul(product, shared), name=f"sum{i}")
    g.output("y", x)
    return g


def test_nodes_follow_what_lives_somewhere() -> None:
    plan = split(chain(), CPU, REFERENCE, lives_on={"w0": 1, "w1": 1, "w2": 0})
    where = {name: backend for name, (backend, _) in causes(plan).items()}
    assert where["rows"] == 1, "what leads to the first layer is where that is"
    assert [where[f"sum{i}"] for i in range(3)] == [1, 1, 0]
    assert [s.backend for s in plan.segments] == [1, 0]
    assert [str(c.spec) for c in plan.copies] == ["f32[3,64]"]
    runs = [{"ids": np.array([5, i, 1], np.int32)} for i in range(2)]
    same(plan, REFERENCE.compile(chain()), runs, exact=False)


def test_plans_that_read_other_weights_share_what_is_loaded() -> None:
    backend = SplitBackend([CPU, REFERENCE], {"a": 0, "b": 1, "c": 0})
    data = {name: host_tensor(random(1, 4, 8)) for name in "abcd"}
    weights = backend.load_weights(data)
    first = weights.on(0, frozenset("a"))
    assert set(first.tensors) == {"a", "c", "d"}, "what lives there, and what lives nowhere"
    assert weights.on(0, frozenset("ac")) is first and weights.on(0, frozenset("d")) is first
    other = weights.on(0, frozenset("ab"))
    assert set(other.tensors) == {"a", "b"} and weights.on(0, frozenset("b")) is other
    assert set(weights.on(1, frozenset("d")).tensors) == {"b", "d"}


@pytest.mark.parametrize("where", [-1, 2])
def test_places_that_are_none_are_refused(where: int) -> None:
    with pytest.raises(
        BackendError, match=f"'w' should live on a backend from 0 to 1, got {where}"
    ):
        split(layer(), CPU, REFERENCE, lives_on={"w": where})


def test_nodes_away_from_inputs_and_weights_go_to_the_first() -> None:
    g = Graph()
    h = g.rms_norm(g.input("x", (2, 8)), eps=1e-6, name="norm")
    g.output("y", g.silu(h, name="gate"))
    plan = split(g, Without(CPU, "rms_norm"), REFERENCE, NullBackend())
    assert causes(plan) == {"norm": (1, "default"), "gate": (0, "default")}


def test_what_nobody_takes_is_refused_with_every_reason() -> None:
    backend = SplitBackend([Without(CPU, "silu"), Without(REFERENCE, "silu")])
    message = (
        r"no backend takes silu \(node \d+ 'gate', backends/test_scheduler\.py:\d+\): "
        "cpu: does without silu; reference: does without silu"
    )
    with pytest.raises(Unsupported, match=message):
        backend.compile(layer())
    gate = next(n for n in layer().nodes if n.name == "gate")
    assert backend.supports(gate).why == "cpu: does without silu; reference: does without silu"
    assert SplitBackend([Without(CPU, "silu"), REFERENCE]).supports(gate).ok


@pytest.fixture
def fused() -> Iterator[str]:
    """An op that no backend has, made of neg and of silu."""

    @register
    class NegSilu(Op):
        """y = silu(-x)"""

        name, inputs = "neg_silu", ("x",)

        def infer(self, x: TensorSpec) -> TensorSpec:
            return x.like()

        def reference(self, x: np.ndarray) -> np.ndarray:
            raise AssertionError("the expansion should have run")

        def expand(self, graph: Graph, x: Value) -> Value:
            return graph.silu(graph.neg(x))

    yield NegSilu.name
    del OPS[NegSilu.name]


def test_fused_ops_that_nobody_takes_are_expanded(fused: str) -> None:
    g = Graph()
    x = g.input("x", (2, 8))
    once = getattr(g, fused)(x, name="one")
    g.output("y", g.add(getattr(g, fused)(once, name="two"), x, name="sum"))
    backends = Without(CPU, fused, "silu"), Without(REFERENCE, fused)
    plan = split(g, *backends)
    names = [(n.op.name, n.name) for n in plan.placement.graph.nodes[1:]]
    assert names == [
        ("neg", "one"),
        ("silu", "one"),
        ("neg", "two"),
        ("silu", "two"),
        ("add", "sum"),
    ]
    placed = [(p.backend, p.cause) for _, p in sorted(plan.placement.nodes.items())]
    origin = f", expanded from {fused}"
    assert placed[0] == (0, "neighbour" + origin) and placed[1] == (1, "only backend" + origin)
    assert placed[4] == (0, "neighbour")
    assert SplitBackend(backends).supports(g.nodes[1]).ok
    h = Graph()
    x = h.input("x", (2, 8))
    h.output("y", h.add(h.silu(h.neg(h.silu(h.neg(x)))), x))
    same(plan, REFERENCE.compile(h), [{"x": random(3, 2, 8)}], exact=False)


def stateful() -> Graph:
    """Two states; "a" is written, read, and written again, "b" is only read."""
    g = Graph("stateful")
    a0, b = g.state("a", (4, 8)), g.state("b", (4, 8), "bf16")
    x, idx = g.input("x", (2, 8)), g.input("idx", (2,), "i32")
    a1 = g.write_rows(a0, g.neg(x), idx, name="first")
    seen = g.silu(g.get_rows(a1, idx, name="look"), name="gate")
    a2 = g.write_rows(a1, seen, idx, name="second")
    g.output("a", g.view(a2, axis=0, start=1, stop=3))
    g.output("b", g.add(g.get_rows(b, idx), seen))
    return g


@pytest.mark.parametrize("lacking", ["silu", "get_rows", "write_rows", "add", "neg"])
@pytest.mark.parametrize("other", ["cpu", "reference"])
def test_states_stay_in_one_place(lacking: str, other: str) -> None:
    first = Without(REFERENCE if other == "cpu" else CPU, lacking)
    plan = split(stateful(), first, open_backend(other, 1))
    writes = {causes(plan)[name] for name in ("first", "second")}
    home = plan.placement.homes["a"]
    assert writes == {(home, "state")} and home == (1 if lacking == "write_rows" else home)
    for part, segment in zip(plan.plans, plan.segments, strict=True):
        assert all(plan.placement.homes[s] == segment.backend for s in part.states)
    runs = [{"x": random(i, 2, 8), "idx": np.array([i, 3 - i], np.int32)} for i in range(3)]
    same(plan, REFERENCE.compile(stateful()), runs, exact=False)


def test_states_live_in_the_pools_of_the_caller() -> None:
    plan = split(stateful(), Without(CPU, "silu"), REFERENCE)
    pools = Pools(plan.states)
    pools.array("b")[...] = 0x3F80  # 1.0
    bound = plan.bind(plan.own_weights(), pools)
    bound.inputs["x"][...] = 1
    bound.inputs["idx"][...] = [2, 0]
    bound.run()
    gate = -1 / (1 + np.e)
    np.testing.assert_allclose(pools.array("a")[[2, 0]], gate, rtol=1e-5)
    assert not pools.array("a")[[1, 3]].any()
    np.testing.assert_allclose(bound.outputs["b"], 1 + gate, rtol=1e-5)
    np.testing.assert_allclose(bound.outputs["a"], pools.array("a")[1:3])


def test_a_state_read_elsewhere_before_its_home_runs_is_copied() -> None:
    g = Graph()
    s, idx = g.state("s", (4, 8)), g.input("idx", (2,), "i32")
    seen = g.get_rows(s, idx, name="look")
    g.output("s", g.write_rows(s, seen, idx, name="write"))
    plan = split(g, Without(CPU, "get_rows"), Without(REFERENCE, "write_rows"))
    assert [len(s.nodes) for s in plan.segments] == [0, 1, 1]
    assert [(c.spec.shape, c.source, c.target) for c in plan.copies] == [
        ((4, 8), 0, 1),
        ((2, 8), 1, 2),
    ]
    pools = Pools(plan.states)
    pools.array("s")[...] = values = random(5, 4, 8)
    bound = plan.bind(plan.own_weights(), pools)
    bound.inputs["idx"][...] = [3, 1]
    bound.run()
    np.testing.assert_array_equal(bound.outputs["s"], values)


def test_a_state_whose_writers_no_one_backend_takes_is_refused() -> None:
    g = Graph()
    idx, x = g.input("idx", (1,), "i32"), g.input("x", (1, 8))
    g.output("s", g.write_rows(g.state("s", (2, 8)), x, idx))
    with pytest.raises(Unsupported, match=r"every write of state 's'.*: cpu: write_rows \(node 3"):
        split(g, Without(CPU, "write_rows"), Without(REFERENCE, "write_rows"))
    with pytest.raises(Unsupported, match="every write of state 's'"):
        split(g, CPU, Without(REFERENCE, "write_rows"), lives_on={"s": 1})
    assert split(g, CPU, REFERENCE, lives_on={"s": 1}).placement.homes == {"s": 1}


def test_memory_that_a_later_segment_overwrites_is_copied_first() -> None:
    def make() -> Graph:
        g = Graph()
        x, idx = g.input("x", (3, 8)), g.input("idx", (1,), "i32")
        own = g.cont(x)
        rows = g.silu(g.view(own, axis=0, start=0, stop=1))
        own = g.write_rows(own, g.neg(rows), idx)
        g.output("y", g.add(own, x))
        return g

    for lacking in ("silu", "write_rows", "cont", "add"):
        plan = split(make(), Without(CPU, lacking), REFERENCE)
        runs = [{"x": random(i, 3, 8), "idx": np.array([i], np.int32)} for i in range(3)]
        same(plan, CPU.compile(make()), runs, exact=False)


def test_outputs_that_nothing_computes() -> None:
    g = Graph()
    x, c = g.input("x", (2, 3), "bf16"), g.constant(np.array([5.0, 7.0]))
    g.output("x", g.transpose(x, a=0, b=1))
    g.output("c", c)
    g.output("s", g.state("s", (1, 2)))
    got = split(g, CPU, REFERENCE)(x=[[1, 2, 3], [4, 5, 6]])
    assert [got["c"].tolist(), got["s"].tolist()] == [[5, 7], [[0, 0]]]
    assert got["x"].shape == (3, 2)


def test_weights_are_given_when_a_plan_is_bound() -> None:
    g = Graph()
    spec = TensorSpec((16, 32), dtype("q8_0"))
    h = g.rms_norm(g.mul_mat(g.input("x", (2, 32)), g.weight("w", spec)), eps=1e-6)
    g.output("y", g.mul_mat(h, g.weight("v", TensorSpec((4, 16)))))
    backend = SplitBackend([Without(CPU, "rms_norm"), REFERENCE])
    plan = backend.compile(g)
    with pytest.raises(GraphError, match="no data for constant 'w'"):
        plan.bind(backend.load_weights({}), Pools({}))
    moved: list[int] = []
    data = {"w": host_tensor(random(6, 16, 32), "q8_0"), "v": host_tensor(random(7, 4, 16))}
    weights = backend.load_weights(data, moved.append)
    bound = plan.bind(weights, Pools({}))
    assert sum(moved) >= spec.nbytes
    bound.inputs["x"][...] = random(8, 2, 32)
    bound.run()
    whole = REFERENCE.compile(g).bind(REFERENCE.load_weights(data), Pools({}))
    whole.inputs["x"][...] = bound.inputs["x"]
    whole.run()
    np.testing.assert_allclose(bound.outputs["y"], whole.outputs["y"], rtol=0.1, atol=0.05)
    plan.bind(weights, Pools({}))
    assert len(weights._loaded) == 2


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs(), st.data())
def test_any_cut_of_a_graph_gives_what_the_whole_gives(graph: Graph, data: st.DataObject) -> None:
    ops = sorted({n.op.name for n in graph.nodes if not n.is_leaf and not n.op.view})
    lacking = data.draw(st.lists(st.sampled_from(ops), max_size=3)) if ops else []
    plan = split(graph, Without(REFERENCE, *lacking), open_backend("reference"))
    values = leaf_values(graph)
    results = []
    for compiled in (plan, REFERENCE.compile(graph)):
        pools = Pools(compiled.states)
        for name in compiled.states:
            pools.array(name)[...] = values[name]
        bound = compiled.bind(compiled.own_weights(), pools)
        for name in compiled.inputs:
            bound.inputs[name][...] = values[name]
        bound.run()
        results.append({**{k: np.array(v) for k, v in bound.outputs.items()}, **pools.states})
    for name, want in results[1].items():
        np.testing.assert_array_equal(results[0][name], want)


# Both differ in the last bits of f32 only. Weights are f32, too: with those of block types a last
# bit may send an activation to the next of its 255 levels, which moves a logit by more than a bound
# that finds faults allows, and whether it does depends on the processor.
NEAR = 1e-4  # of the largest logit


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return VARIANTS["qwen35"]().write(tmp_path_factory.mktemp("tiny") / "qwen35.gguf")


@pytest.mark.parametrize("lacking", ["gated_delta_net", "rms_norm", "attention", "mul_mat"])
def test_a_model_runs_across_two_backends(file: Path, lacking: str) -> None:
    whole = Model(load_file(file), "cpu", 1).session(n_ctx=64)
    model = Model(load_file(file), "cpu", 1)
    first = Without(CPU, lacking)
    model.backend = SplitBackend([first, REFERENCE])
    model.weights = model.backend.load_weights(model.source.weights)
    session = model.session(n_ctx=64)
    assert len(first.compiled) > 1
    for ids in ([7, 3, 250, 5, 61], [11], [200, 4, 9]):
        want = whole.evaluate([(0, ids)], want="all").logits
        got = session.evaluate([(0, ids)], want="all").logits
        assert np.abs(got - want).max() <= NEAR * np.abs(want).max()
