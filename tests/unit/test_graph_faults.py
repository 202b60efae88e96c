"""Each fault that `verify` finds is reported with the node's name and the line that made it."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import riverrun.ops  # noqa: F401
from riverrun.graph import Graph, TensorSpec, Value, dtype, verify
from riverrun.graph.errors import DTypeError, GraphError, ShapeError

Fault = Callable[[Graph, Value], None]


def rewire(value: Value, *inputs: Value | None, spec: TensorSpec | None = None) -> None:
    """Other inputs, and another spec if one is given, for a node that stays the one it is."""
    object.__setattr__(value.node, "inputs", inputs)
    if spec is not None:
        object.__setattr__(value.node, "specs", (spec,))


def write(g: Graph, state: Value) -> None:
    g.write_rows(state, g.input("rows.w", (3, 8)), g.input("idx.w", (3,), "i32"))


def used_before_definition(g: Graph, x: Value) -> None:
    y = g.neg(x, name="culprit")
    rewire(y, g.sqr(x))


def nodes_swapped(g: Graph, x: Value) -> None:
    g.sqr(g.neg(x), name="culprit")
    g.nodes.append(g.nodes.pop(1))


def cycle(g: Graph, x: Value) -> None:
    y = g.neg(x, name="culprit")
    rewire(y, g.sqr(g.sqr(y)))


def cycle_of_one(g: Graph, x: Value) -> None:
    y = g.neg(x, name="culprit")
    rewire(y, y)


def node_of_another_graph(g: Graph, x: Value) -> None:
    y = g.neg(x, name="culprit")
    rewire(y, Graph().input("x", (2, 4)))


def output_that_is_not_there(g: Graph, x: Value) -> None:
    y = g.neg(x, name="culprit")
    rewire(y, Value(x.node, 1))


def input_missing(g: Graph, x: Value) -> None:
    y = g.add(x, x, name="culprit")
    rewire(y, x, None)


def input_of_another_shape(g: Graph, x: Value) -> None:
    narrow = g.input("narrow", (2, 3))
    y = g.add(x, x, name="culprit")
    rewire(y, x, narrow)


def input_of_another_dtype(g: Graph, x: Value) -> None:
    half = g.input("half", (2, 4), "f16")
    y = g.sqr(x, name="culprit")
    rewire(y, half)


def result_of_another_shape(g: Graph, x: Value) -> None:
    y = g.neg(x, name="culprit")
    rewire(y, x, spec=TensorSpec((4, 2)))


def result_of_another_dtype(g: Graph, x: Value) -> None:
    y = g.neg(x, name="culprit")
    rewire(y, x, spec=TensorSpec((2, 4), dtype("f16")))


def leaf_named_twice(g: Graph, x: Value) -> None:
    y = g.input("culprit", (2, 4))
    object.__setattr__(x.node, "name", y.node.name)


def stale_state_read(g: Graph, x: Value) -> None:
    s0 = g.state("s", (4, 8))
    write(g, s0)
    g.neg(s0, name="culprit")


def stale_state_read_through_a_view(g: Graph, x: Value) -> None:
    s0 = g.state("s", (4, 8))
    old = g.view(s0, axis=0, start=1, stop=2)
    write(g, s0)
    g.neg(old, name="culprit")


def stale_state_written(g: Graph, x: Value) -> None:
    s0, idx = g.state("s", (4, 8)), g.input("idx", (3,), "i32")
    write(g, s0)
    g.write_rows(s0, g.input("rows", (3, 8)), idx, name="culprit")


def stale_state_as_output(g: Graph, x: Value) -> None:
    s0 = g.state("culprit", (4, 8))
    write(g, s0)
    g.output("old", s0)


def state_read_through_two_inputs(g: Graph, x: Value) -> None:
    s0, idx = g.state("s", (4, 8)), g.input("idx", (2,), "i32")
    rows = g.view(s0, axis=0, start=1, stop=3)
    g.write_rows(s0, rows, idx, name="culprit")


def input_written(g: Graph, x: Value) -> None:
    rows, idx = g.input("rows", (3, 4)), g.input("idx", (3,), "i32")
    g.write_rows(x, rows, idx, name="culprit")


def output_of_another_graph(g: Graph, x: Value) -> None:
    g.outputs["y"] = Graph().input("culprit", (2, 4))


def line_of_the_culprit(fault: Fault) -> str:
    """Where a fault's source makes the node of that name, as messages write it."""
    lines, first = inspect.getsourcelines(fault)
    at = next(i for i, line in enumerate(lines) if '"culprit"' in line)
    return f"unit/test_graph_faults.py:{first + at}"


@pytest.mark.parametrize(
    ("fault", "error", "said"),
    [
        (used_before_definition, GraphError, "%2:f32[2,4] is not an earlier value: node 2, "),
        (nodes_swapped, GraphError, "stands at place 1 of graph 'graph'"),
        (cycle, GraphError, "neg: input %3:f32[2,4] is not an earlier value: a cycle through"),
        (cycle_of_one, GraphError, "a cycle through node 1 'culprit'"),
        (node_of_another_graph, GraphError, "node 0 'x', unit/test_graph_faults.py:"),
        (output_that_is_not_there, GraphError, "has no such output: 1 [node 1"),
        (input_missing, GraphError, "add: input 1 is missing"),
        (input_of_another_shape, ShapeError, "add: 'b' should be"),
        (input_of_another_dtype, DTypeError, "sqr: 'x' should be f32, got f16"),
        (result_of_another_shape, GraphError, "gives f32[2,4], node has f32[4,2]"),
        (result_of_another_dtype, GraphError, "gives f32[2,4], node has f16[2,4]"),
        (leaf_named_twice, GraphError, "two leaves are called 'culprit': node 0 "),
        (stale_state_read, GraphError, "neg: reads state version %1:f32[4,8], which node 4, "),
        (stale_state_read_through_a_view, GraphError, "neg: reads state version %2:f32[1,8]"),
        (stale_state_written, GraphError, "overwritten twice, first by node 5, "),
        (stale_state_as_output, GraphError, "output 'old' is a state version that is overwritten"),
        (state_read_through_two_inputs, GraphError, "which it overwrites, through another input"),
        (input_written, GraphError, "write_rows: writes %0:f32[2,4], which is not a state"),
        (output_of_another_graph, GraphError, "output 'y' of graph 'graph' is not one of its"),
    ],
    ids=lambda v: getattr(v, "__name__", "") if inspect.isfunction(v) else "",
)
def test_a_fault_is_reported_with_its_node_and_source_line(
    fault: Fault, error: type[GraphError], said: str
) -> None:
    g = Graph()
    fault(g, g.input("x", (2, 4)))
    with pytest.raises(GraphError) as caught:
        verify(g)
    message = str(caught.value)
    assert caught.type is error and said in message, message
    assert f"'culprit', {line_of_the_culprit(fault)}" in message
