"""Graph passes: what is dropped, what stays, and that results do not change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import riverrun.ops  # noqa: F401
from hypothesis import HealthCheck, given, settings
from random_graphs import graphs, leaf_values
from riverrun.backends import open_backend
from riverrun.backends.base import BoundPlan, Plan, Pools
from riverrun.backends.reference import ReferencePlan
from riverrun.graph import Graph, Node, Op, TensorSpec, Value, host_tensor, to_text, verify
from riverrun.graph.errors import GraphError
from riverrun.graph.passes.dce import eliminate, live_nodes
from riverrun.graph.passes.expand import expand, expansion


def test_dead_nodes_go_and_the_rest_is_renumbered() -> None:
    g = Graph("demo")
    x = g.input("x", (2, 4))
    g.sqr(g.neg(x))
    g.constant(np.ones(4), "unused")
    g.output("y", g.silu(x, name="kept"))
    out = eliminate(g)
    verify(out)
    assert [n.op.name for n in out.nodes] == ["input", "silu"]
    assert [n.id for n in out.nodes] == [0, 1]
    assert out.nodes[1].name == "kept" and out.nodes[1].where == g.nodes[-1].where
    assert out.data == {} and out.name == "demo"


def test_the_given_graph_stays_as_it_was() -> None:
    g = Graph()
    g.neg(g.input("x", (2,)))
    g.output("y", g.constant(np.ones(2), "c"))
    before = to_text(g)
    eliminate(g)
    assert to_text(g) == before and list(g.data) == ["c"]


def test_inputs_stay_as_the_interface() -> None:
    g = Graph()
    g.input("unused", (2,))
    g.state("forgotten", (2, 2))
    g.output("y", g.neg(g.input("x", (2,))))
    assert [n.name for n in eliminate(g).nodes if n.is_leaf] == ["unused", "x"]


def test_state_writes_stay_with_what_they_need() -> None:
    g = Graph()
    s0, idx = g.state("s", (4, 8)), g.input("idx", (2,), "i32")
    rows = g.neg(g.input("rows", (2, 8)))
    g.write_rows(s0, rows, idx)
    g.output("y", g.input("x", (1,)))
    names = [n.op.name for n in eliminate(g).nodes]
    assert names == ["state", "input", "input", "neg", "write_rows", "input"]


def test_writes_to_a_copy_go_when_nobody_reads_it() -> None:
    g = Graph()
    x, idx = g.input("x", (4, 8)), g.input("idx", (4,), "i32")
    g.write_rows(g.cont(x), x, idx)
    g.output("y", g.neg(g.write_rows(g.cont(x), x, idx)))
    names = [n.op.name for n in eliminate(g).nodes]
    assert names == ["input", "input", "cont", "write_rows", "neg"]


def test_an_op_with_one_used_output_stays_whole() -> None:
    g = Graph()
    _, indices = g.top_k(g.input("x", (2, 8)), k=2)
    g.output("y", indices)
    out = eliminate(g)
    assert len(out.nodes) == 2 and out.outputs["y"].index == 1


def test_a_pruned_graph_can_be_built_on() -> None:
    g = Graph()
    x = g.input("x", (2,))
    g.neg(x)
    g.output("y", x)
    out = eliminate(g)
    out.output("z", out.sqr(out.outputs["y"]))
    verify(out)
    assert [n.op.name for n in live_nodes(out)] == ["input", "sqr"]


def run(plan: Plan, graph: Graph) -> tuple[list[bytes], bytes]:
    """Outputs and the state afterwards."""
    leaves, pools = leaf_values(graph), Pools(plan.states)
    for name in plan.states:
        pools.array(name)[...] = leaves[name]
    bound: BoundPlan = plan.bind(plan.own_weights(), pools)
    for name, array in bound.inputs.items():
        array[...] = leaves[name]
    bound.run()
    return [v.tobytes() for v in bound.outputs.values()], b"".join(
        pools.states[n].tobytes() for n in sorted(pools.states)
    )


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(graphs(16))
def test_elimination_changes_no_result(graph: Graph) -> None:
    plan = open_backend("reference").compile(graph)
    with np.errstate(all="ignore"):
        kept, whole = run(plan, graph), run(ReferencePlan(graph, "step"), graph)
    assert kept[0] == whole[0]
    if plan.states:
        assert kept[1] == whole[1]


@dataclass(frozen=True)
class Fused(Op):
    """What the ops of these tests share: y like x. They are not registered."""

    inputs, outputs = ("x",), ("y",)

    def infer(self, x: TensorSpec) -> TensorSpec:
        return x.like()


@dataclass(frozen=True)
class PlusOne(Fused):
    """y = x + 1"""

    name = "plus_one"

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x + np.float32(1)

    def expand(self, graph: Graph, x: Value) -> Value:
        return graph.add(x, graph.constant(np.ones(1, np.float32)), name="sum")


@dataclass(frozen=True)
class Sandwich(Fused):
    """y = -(x + 1) + 1, z = x + 1"""

    name, outputs = "sandwich", ("y", "z")

    def infer(self, x: TensorSpec) -> Any:
        return x.like(), x.like()

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        z = x + np.float32(1)
        return np.float32(1) - z, z

    def expand(self, graph: Graph, x: Value) -> tuple[Value, ...]:
        z = graph.apply(PlusOne(), (x,), "inner").value()
        return graph.apply(PlusOne(), (graph.neg(z),)).value(), z


def sandwich() -> Graph:
    """x, and twice the op on it, with constants that have taken likely names."""
    g = Graph("demo")
    x = g.input("x", (2, 3))
    for i in range(1, 9, 2):
        g.constant(np.full(1, i), f"constant.{i}")
    y, z = g.apply(Sandwich(), (x,), "first"), g.apply(Sandwich(), (x,))
    g.output("z", z.value(1))
    g.output("y", g.add(y.value(), z.value()))
    for i in range(2, 9, 2):
        g.output(f"c{i}", g.constant(np.full(1, i), f"constant.{i}"))
    return g


def drop_all(node: Node) -> bool:
    return False


def test_fused_nodes_give_way_to_what_they_are_made_of() -> None:
    g = sandwich()
    before = to_text(g)
    out = expand(g, drop_all)
    assert to_text(g) == before
    ops = [n.op.name for n in out.nodes if not n.is_leaf]
    assert ops == ["add", "neg", "add"] * 2 + ["add"]
    assert list(out.outputs) == list(g.outputs) and out.name == "demo"
    leaves = [n.name for n in out.nodes if n.is_leaf]
    assert len(set(leaves)) == len(leaves) == 1 + 8 + 4 and set(out.data) == set(leaves) - {"x"}
    old = {n.name for n in g.nodes if n.is_leaf}
    assert [n for n in leaves if n in old] == [n.name for n in g.nodes if n.is_leaf]
    labels = [n.name for n in out.nodes if not n.is_leaf]
    assert labels == ["first.inner.sum", "first", "first.sum", "inner.sum", "", "sum", ""]
    fused = next(n for n in g.nodes if n.name == "first")
    assert all(n.where == fused.where for n in out.nodes if n.name.startswith("first"))
    plans = [open_backend("reference").compile(graph) for graph in (g, out)]
    x = np.arange(6).reshape(2, 3)
    one, two = (plan(x=x) for plan in plans)
    assert all(one[k].tobytes() == two[k].tobytes() for k in g.outputs)
    assert one["y"].tolist() == (-2 * x).tolist() and one["z"].tolist() == (x + 1).tolist()
    assert one["c2"] == 2 and one["c8"] == 8


def test_kept_nodes_stay_inside_expansions_too() -> None:
    g = sandwich()
    asked: set[str] = set()

    def keep(node: Node) -> bool:
        asked.add(node.op.name)
        return node.op.name == "plus_one"

    out = expand(g, keep)
    assert [n.op.name for n in out.nodes if n.op.name.startswith("plus")] == ["plus_one"] * 4
    assert asked == {"sandwich", "plus_one"}
    assert expand(g, lambda node: True) is g


def test_an_expansion_is_a_graph_of_its_own() -> None:
    g = Graph()
    x = g.weight("w", TensorSpec((2, 3)))
    node = g.apply(Sandwich(), (x,))
    parts = expansion(node)
    assert parts is not None and list(parts.outputs) == ["y", "z"]
    assert [(n.op.name, n.name) for n in parts.nodes if n.is_leaf] == [("constant", "x")]
    verify(parts)
    assert expansion(g.neg(x).node) is None


@dataclass(frozen=True)
class Wrong(Fused):
    """Whose expansion has a fault."""

    name = "wrong"
    fault: str = ""

    def expand(self, graph: Graph, x: Value) -> Any:
        if self.fault == "shape":
            return graph.reshape(x, shape=(-1,))
        if self.fault == "input":
            return graph.add(x, graph.input("more", x.shape))
        if self.fault == "endless":
            return graph.neg(graph.apply(Wrong(fault="endless"), (x,)).value())
        if self.fault == "writes":
            return graph.write_rows(x, x, graph.constant(np.zeros(2, np.int32)))
        return None


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("shape", r"wrong: expansion should give f32\[2,3\], got f32\[6\]"),
        ("input", "wrong: expansion adds input 'more'"),
        ("endless", "wrong: expansion never ends: wrong -> wrong"),
        ("writes", "write_rows: writes .* which is not a state"),
    ],
)
def test_expansions_that_do_not_fit_are_refused(fault: str, message: str) -> None:
    g = Graph()
    g.output("y", g.apply(Wrong(fault=fault), (g.input("x", (2, 3)),)).value())
    with pytest.raises(GraphError, match=message):
        expand(g, drop_all)


def test_an_op_may_have_no_expansion_for_some_attributes() -> None:
    g = Graph()
    g.output("y", g.apply(Wrong(), (g.input("x", (2, 3)),)).value())
    assert expand(g, drop_all) is g


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_backends_run_what_they_have_no_kernel_for_as_its_expansion(device: str) -> None:
    g = sandwich()
    backend = open_backend(device, 1)
    assert all(backend.supports(n).ok for n in g.nodes)
    plan = backend.compile(g)
    made = {n.op.name for n in plan.graph.nodes}
    assert ("sandwich" in made) == (device == "reference")
    assert plan(x=np.zeros((2, 3)))["y"].tolist() == [[0.0] * 3] * 2
    # Weights given from outside lack the expansion's own constants.
    given = backend.load_weights({"unrelated": host_tensor(np.ones(3))})
    bound = plan.bind(given, Pools(plan.states))
    bound.inputs["x"][...] = 1.0
    bound.run()
    assert bound.outputs["z"].tolist() == [[2.0] * 3] * 2


def test_a_fused_node_is_refused_with_the_part_that_lacks_a_kernel() -> None:
    g = Graph()
    node = g.apply(Wrong(fault="endless"), (g.input("x", (2, 3)),))
    backend = open_backend("cpu", 1)
    with pytest.raises(GraphError, match="never ends"):
        backend.supports(node)
    plain = g.apply(Wrong(), (g.nodes[0].value(),))
    assert backend.supports(plain).why == "no kernel of this op"


def test_what_is_added_to_a_graph_later_is_no_part_of_its_plan() -> None:
    g = Graph()
    x = g.input("x", (2,))
    g.output("y", g.neg(x))
    plan = open_backend("reference").compile(g)
    g.output("z", g.silu(g.input("other", (2,))))
    g.output("n", g.neg(g.constant(np.ones(2, np.float32))))
    assert plan(x=[1, 2]).tolist() == [-1, -2]
    assert [*plan.graph.outputs] == ["y"] and not plan.graph.data
