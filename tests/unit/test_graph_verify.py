"""What `verify` rejects. Broken graphs are made by hand, since the builder makes none."""

from __future__ import annotations

from dataclasses import replace

import pytest
import riverrun.ops  # noqa: F401
from riverrun.graph import Graph, Node, TensorSpec, Value, verify
from riverrun.graph.errors import GraphError
from riverrun.graph.verify import ancestors, memory_versions, state_versions


def chain() -> Graph:
    g = Graph("chain")
    x = g.input("x", (2, 4))
    g.output("y", g.neg(g.sqr(x)))
    return g


def test_a_built_graph_is_accepted() -> None:
    verify(chain())
    verify(Graph("empty"))


def test_nodes_out_of_place_are_rejected() -> None:
    g = chain()
    g.nodes[1], g.nodes[2] = g.nodes[2], g.nodes[1]
    with pytest.raises(GraphError, match=r"node 2.* stands at place 1 of graph 'chain'"):
        verify(g)


def test_later_inputs_are_rejected() -> None:
    g = chain()
    last = g.nodes[2]
    g.nodes[1] = replace(g.nodes[1], inputs=(last.value(),))
    with pytest.raises(GraphError, match=r"sqr: input %2:f32\[2,4\] is not an earlier value"):
        verify(g)


def test_nodes_of_another_graph_are_rejected() -> None:
    g, other = chain(), chain()
    g.nodes[1] = replace(g.nodes[1], inputs=(other.nodes[0].value(),))
    with pytest.raises(GraphError, match=r"is not an earlier value"):
        verify(g)


def test_outputs_that_a_node_does_not_have_are_rejected() -> None:
    g = chain()
    g.nodes[1] = replace(g.nodes[1], inputs=(Value(g.nodes[0], 3),))
    with pytest.raises(GraphError, match=r"node 0 'x'.* has no such output"):
        verify(g)


def test_graph_outputs_belong_to_the_graph() -> None:
    g, other = chain(), chain()
    g.outputs["z"] = other.nodes[1].value()
    with pytest.raises(GraphError, match=r"output 'z' of graph 'chain' is not one of its values"):
        verify(g)


@pytest.mark.parametrize("place", [7, 0])
def test_graph_outputs_have_a_node_and_an_index(place: int) -> None:
    g = chain()
    node = Node(place, g.nodes[0].op, (), g.nodes[0].specs, "ghost") if place else g.nodes[0]
    g.outputs["z"] = Value(node, 0 if place else 1)
    with pytest.raises(GraphError, match=r"output 'z' of graph 'chain' is not one of its values"):
        verify(g)


def test_specs_follow_the_shape_rule() -> None:
    g = chain()
    g.nodes[1] = replace(g.nodes[1], specs=(TensorSpec((2, 5)),))
    with pytest.raises(GraphError, match=r"sqr: shape rule gives .*node has"):
        verify(g)


def test_inputs_are_as_many_as_the_op_takes() -> None:
    g = chain()
    x = g.nodes[0].value()
    g.nodes[1] = replace(g.nodes[1], inputs=(x, x))
    with pytest.raises(GraphError, match=r"sqr: takes x; got 2 inputs"):
        verify(g)


def test_leaf_names_are_unique() -> None:
    g = Graph()
    g.input("x", (2,))
    g.nodes.append(Node(1, g.nodes[0].op, (), g.nodes[0].specs, "x"))
    with pytest.raises(GraphError, match=r"two leaves are called 'x'"):
        verify(g)


def writer(g: Graph, state: Value, tag: str = "") -> Value:
    rows, idx = g.input(f"rows{tag}", (3, 8)), g.input(f"idx{tag}", (3,), "i32")
    return g.write_rows(state, rows, idx)


def test_reading_a_view_of_an_old_version_is_rejected() -> None:
    g = Graph()
    s0 = g.state("s", (4, 8))
    old = g.view(s0, axis=0, start=1, stop=2)
    writer(g, s0)
    g.output("y", g.neg(old))
    with pytest.raises(GraphError, match=r"neg: reads state version .* overwrites without"):
        verify(g)


def test_a_read_that_the_overwrite_depends_on_is_accepted() -> None:
    g = Graph()
    s0, idx = g.state("s", (4, 8)), g.input("idx", (2,), "i32")
    read = g.neg(g.view(s0, axis=0, start=1, stop=3))
    g.output("s1", g.write_rows(s0, read, idx))
    verify(g)


def test_an_old_version_is_no_output() -> None:
    g = Graph()
    s0 = g.state("s", (4, 8))
    g.output("old", g.reshape(s0, shape=(8, 4)))
    writer(g, s0)
    with pytest.raises(GraphError, match=r"output 'old' is a state version that is overwritten"):
        verify(g)


def scratch(g: Graph) -> Value:
    """A copy of an input, for writing to."""
    return g.cont(g.input("x", (4, 8)))


@pytest.mark.parametrize("view", [False, True])
def test_what_a_node_made_may_be_written(view: bool) -> None:
    g = Graph()
    made = scratch(g)
    s1 = writer(g, g.view(made, axis=0, start=1, stop=4) if view else made)
    g.output("s2", writer(g, s1, "2"))
    verify(g)


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("leaf", ["input", "constant"])
def test_inputs_and_constants_are_not_written(leaf: str, view: bool) -> None:
    g = Graph()
    x = g.input("x", (4, 8)) if leaf == "input" else g.weight("x", TensorSpec((4, 8)))
    writer(g, g.view(x, axis=0, start=1, stop=4) if view else x)
    with pytest.raises(GraphError, match=r"write_rows: writes %.*not a state.*copy it with g.cont"):
        verify(g)


def test_what_is_written_is_not_read_afterwards() -> None:
    g = Graph()
    made = scratch(g)
    seen = g.reshape(made, shape=(8, 4))
    g.output("new", writer(g, made))
    verify(g)
    g.output("y", g.neg(seen))
    with pytest.raises(GraphError, match=r"neg: reads value %.* overwrites without depending"):
        verify(g)


def test_what_is_written_may_be_read_by_what_the_write_needs() -> None:
    g = Graph()
    made = scratch(g)
    rows = g.neg(g.view(made, axis=0, start=1, stop=3))
    g.output("y", g.write_rows(made, rows, g.input("idx", (2,), "i32")))
    verify(g)


def test_what_is_written_is_written_once_and_no_output() -> None:
    g = Graph()
    made = scratch(g)
    writer(g, made)
    g.output("old", made)
    with pytest.raises(GraphError, match=r"output 'old' is a value that is overwritten later"):
        verify(g)
    del g.outputs["old"]
    verify(g)
    writer(g, g.reshape(made, shape=(4, 8)), "2")
    with pytest.raises(GraphError, match=r"write_rows: value %.* is overwritten twice"):
        verify(g)


@pytest.mark.parametrize("state", [False, True])
def test_a_write_does_not_read_its_memory_through_another_input(state: bool) -> None:
    g = Graph()
    old = g.state("s", (4, 8)) if state else scratch(g)
    rows = g.view(old, axis=0, start=1, stop=3)
    g.output("y", g.write_rows(old, rows, g.input("idx", (2,), "i32")))
    with pytest.raises(GraphError, match=r"write_rows: reads .* through another input too"):
        verify(g)


def test_two_states_do_not_disturb_each_other() -> None:
    g = Graph()
    a, b = g.state("a", (4, 8)), g.state("b", (4, 8))
    a1 = writer(g, a, "a")
    g.output("y", g.neg(b))
    g.output("a1", a1)
    verify(g)


def test_versions_follow_writes_and_views() -> None:
    g = Graph()
    s0 = g.state("s", (4, 8))
    seen = g.reshape(s0, shape=(8, 4))
    s1 = writer(g, s0)
    again = g.reshape(s1, shape=(32,))
    version = state_versions(g)
    assert version[seen] == version[s0] == (s0.node, 0)
    assert version[again] == version[s1] == (s1.node, 0)
    assert set(version) == {s0, seen, s1, again}


def test_written_copies_are_no_state_versions() -> None:
    g = Graph()
    made = scratch(g)
    s1 = writer(g, made)
    seen = g.reshape(s1, shape=(8, 4))
    assert state_versions(g) == {}
    version = memory_versions(g)
    assert version == {made: (made.node, 0), s1: (s1.node, 0), seen: (s1.node, 0)}


def test_ancestors_are_transitive() -> None:
    g = Graph()
    x, y = g.input("x", (2,)), g.input("y", (2,))
    z = g.neg(g.sqr(x))
    assert ancestors(g) == [0b1, 0b10, 0b101, 0b1101]
    assert y.node.id == 1 and z.node.id == 3
