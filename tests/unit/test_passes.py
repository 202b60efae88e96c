"""Graph passes: what is dropped, what stays, and that results do not change."""

from __future__ import annotations

import numpy as np
import riverrun.ops  # noqa: F401
from hypothesis import HealthCheck, given, settings
from random_graphs import graphs, leaf_values
from riverrun.backends import open_backend
from riverrun.backends.base import BoundPlan, Plan, Pools
from riverrun.backends.reference import ReferencePlan
from riverrun.graph import Graph, to_text, verify
from riverrun.graph.passes.dce import eliminate, live_nodes


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
