"""The memory plan: no two live values share bytes, save where ops say that they may."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from random_graphs import graphs, leaf_values
from riverrun.graph import Graph, MemoryPlan, Node, Value, plan_memory, verify
from riverrun.graph.memory import ALIGN

Range = tuple[str, str, int, int]


def bytes_of(plan: MemoryPlan, value: Value) -> Range:
    """Buffer and first and last byte (exclusive) of a value's storage."""
    place, spec = plan.places[value], value.spec
    last = sum((n - 1) * s for n, s in zip(spec.shape, spec.byte_strides, strict=True))
    size = 0 if 0 in spec.shape else last + spec.dtype.nbytes
    return place.kind, place.name, place.offset, place.offset + size


def overlap(a: Range, b: Range) -> bool:
    return a[:2] == b[:2] and a[2] < b[3] and b[2] < a[3]


def owner(value: Value) -> Value:
    """The value whose memory this one is, through views and state writes."""
    while True:
        source = value.node.written().get(value.index)
        if source is None and value.node.op.view:
            source = value.node.inputs[0]
        if source is None:
            return value
        value = source


def last_reads(graph: Graph) -> dict[Value, int]:
    """For each owner of memory the last node that reads it, len(nodes) for outputs."""
    last: dict[Value, int] = {}
    for node in graph.nodes:
        for i in range(len(node.specs)):
            last.setdefault(owner(node.value(i)), node.id)
        for value in node.inputs:
            if value is not None:
                last[owner(value)] = node.id
    return last | {owner(v): len(graph.nodes) for v in graph.outputs.values()}


def may_replace(node: Node, index: int, value: Value) -> bool:
    """Whether the op declares that this output may lie exactly where this input lies."""
    names = [n.strip("?*") for n in node.op.inputs]
    sources = node.op.inplace.get(node.op.outputs[index], "").split()
    readers = [v for v in node.inputs if v is not None and owner(v) == value]
    return readers == [value] and any(node.inputs[names.index(s)] == value for s in sources)


def check_no_overlap(graph: Graph, plan: MemoryPlan) -> None:
    last = last_reads(graph)
    for node in graph.nodes:
        for index in range(len(node.specs)):
            made = node.value(index)
            if node.is_leaf or owner(made) != made:
                continue
            mine = bytes_of(plan, made)
            for other, until in last.items():
                alive = other.node.id <= node.id <= until and other != made
                if not alive or not overlap(mine, bytes_of(plan, other)):
                    continue
                assert until == node.id and mine == bytes_of(plan, other)
                assert may_replace(node, index, other), f"{made} overwrites {other}"


def run_in_places(graph: Graph, plan: MemoryPlan, leaves: dict[str, np.ndarray]) -> list[bytes]:
    """The outputs when every value is read from and written to its place."""
    buffers = {("arena", ""): np.full(plan.arena_bytes, 0xFF, np.uint8)}
    for node in graph.nodes:
        if node.is_leaf:
            flat = np.ascontiguousarray(leaves[node.name]).reshape(-1).view(np.uint8).copy()
            buffers[node.op.name, node.name] = flat

    def at(value: Value) -> np.ndarray:
        place, spec = plan.places[value], value.spec
        raw = buffers[place.kind, place.name].data
        return np.ndarray(spec.shape, spec.dtype.numpy, raw, place.offset, spec.byte_strides)

    for node in graph.nodes:
        if node.is_leaf or node.op.view:
            continue
        results = node.op.reference(*(None if v is None else at(v) for v in node.inputs))
        results = results if isinstance(results, tuple) else (results,)
        for index, array in enumerate(results):
            at(node.value(index))[...] = array
    return [np.ascontiguousarray(at(v)).tobytes() for v in graph.outputs.values()]


def run_apart(graph: Graph, leaves: dict[str, np.ndarray]) -> list[bytes]:
    """The outputs when every value has memory of its own."""
    values: dict[Value, np.ndarray] = {}
    for node in graph.nodes:
        if node.is_leaf:
            values[node.value()] = leaves[node.name]
            continue
        results = node.op.reference(*(None if v is None else values[v] for v in node.inputs))
        for index, array in enumerate(results if isinstance(results, tuple) else (results,)):
            values[node.value(index)] = array
    return [np.ascontiguousarray(values[v]).tobytes() for v in graph.outputs.values()]


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(graphs())
def test_any_graph_runs_in_its_places(graph: Graph) -> None:
    verify(graph)
    plan = plan_memory(graph)
    check_no_overlap(graph, plan)
    for value, place in plan.places.items():
        assert place.kind != "arena" or bytes_of(plan, value)[3] <= plan.arena_bytes
        if owner(value) == value:
            assert place.offset % ALIGN == 0
    assert plan.peak_bytes <= plan.arena_bytes
    leaves = leaf_values(graph)
    with np.errstate(all="ignore"):
        assert run_in_places(graph, plan, leaves) == run_apart(graph, leaves)


def test_a_chain_takes_one_buffer() -> None:
    g = Graph()
    x = g.input("x", (16, 16))
    for _ in range(20):
        x = g.silu(x)
    g.output("y", x)
    assert plan_memory(g).arena_bytes == 16 * 16 * 4


def test_a_chain_without_declared_reuse_takes_two() -> None:
    g = Graph()
    x = g.input("x", (16, 16))
    for _ in range(20):
        x = g.cont(g.permute(x, axes=(1, 0)))
    g.output("y", x)
    assert plan_memory(g).arena_bytes == 2 * 16 * 16 * 4


def test_leaves_are_never_overwritten() -> None:
    g = Graph()
    x = g.input("x", (4, 4))
    y = g.output("y", g.neg(x))
    assert plan_memory(g).places[y].kind == "arena"


def test_an_input_read_twice_is_not_reused_by_its_op() -> None:
    g = Graph()
    a = g.neg(g.input("x", (4, 4)))
    y = g.output("y", g.mul(a, g.permute(a, axes=(1, 0))))
    places = plan_memory(g).places
    assert places[a] != places[y]


def test_an_input_that_dies_lends_its_place() -> None:
    g = Graph()
    a, b = (g.neg(g.input(n, (4, 4))) for n in "ab")
    y = g.output("y", g.sub(a, b))
    places = plan_memory(g).places
    assert places[y] == places[a] != places[b]


@pytest.mark.parametrize("first", [True, False])
def test_either_declared_input_may_lend(first: bool) -> None:
    g = Graph()
    gate, up = (g.neg(g.input(n, (4, 4))) for n in ("gate", "up"))
    y = g.output("y", g.swiglu(gate, up))
    g.output("kept", gate if first else up)
    places = plan_memory(g).places
    assert places[y] == places[up if first else gate]


def test_a_view_keeps_its_memory_alive() -> None:
    g = Graph()
    a = g.neg(g.input("x", (4, 4)))
    v = g.view(a, axis=0, start=2, stop=3)
    b = g.sqr(g.input("z", (4, 4)))
    y = g.output("y", g.add(b, v))
    plan = plan_memory(g)
    assert plan.places[v].offset == plan.places[a].offset + 2 * 16
    assert plan.places[b] != plan.places[a] and plan.places[y] == plan.places[b]


def test_views_of_views_add_their_offsets() -> None:
    g = Graph()
    a = g.neg(g.input("x", (8, 4)))
    outer = g.view(a, axis=0, start=2, stop=6)
    inner = g.view(g.permute(outer, axes=(1, 0)), axis=1, start=1, stop=3)
    g.output("y", g.cont(inner))
    plan = plan_memory(g)
    assert plan.places[inner].offset == plan.places[a].offset + 3 * 16


def patched(g: Graph, made: Value, tag: str = "") -> Value:
    """The next version of what a node made."""
    rows, idx = g.input(f"rows{tag}", (2, 4)), g.input(f"idx{tag}", (2,), "i32")
    return g.write_rows(made, rows, idx)


def test_a_written_value_keeps_its_place_as_long_as_the_new_version_is_used() -> None:
    g = Graph()
    made = g.neg(g.input("x", (8, 4)))
    first = patched(g, made)
    second = patched(g, g.view(first, axis=0, start=2, stop=8), "2")
    between = [g.silu(g.input(f"z{i}", (8, 4))) for i in range(3)]
    whole = g.concat(g.view(between[1], axis=0, start=0, stop=2), second, axis=0)
    y = g.output("y", g.add(between[0], whole))
    g.output("z", between[2])
    verify(g)
    plan = plan_memory(g)
    assert plan.places[first] == plan.places[made]
    assert plan.places[second].offset == plan.places[made].offset + 2 * 16
    assert len({plan.places[v] for v in (made, *between)}) == 4
    assert plan.places[y] == plan.places[between[0]]
    check_no_overlap(g, plan)


def test_a_written_version_lends_its_place_to_nobody() -> None:
    g = Graph()
    made = g.neg(g.input("x", (8, 4)))
    y = g.output("y", g.silu(patched(g, made)))
    places = plan_memory(g).places
    assert places[y] != places[made]


def test_a_value_read_before_its_overwrite_is_not_lent() -> None:
    g = Graph()
    made = g.neg(g.input("x", (2, 4)))
    rows = g.silu(made)
    y = g.output("y", g.write_rows(made, rows, g.input("idx", (2,), "i32")))
    verify(g)
    places = plan_memory(g).places
    assert places[y] == places[made] != places[rows]


def test_an_unread_output_has_memory_of_its_own() -> None:
    g = Graph()
    values, indices = g.top_k(g.input("x", (2, 8)), k=2)
    g.output("y", g.neg(values))
    plan = plan_memory(g)
    assert not overlap(bytes_of(plan, values), bytes_of(plan, indices))


def test_freed_neighbours_merge() -> None:
    g = Graph()
    x = g.input("x", (16,))
    small = [g.neg(x) for _ in range(4)]
    total = g.add(g.add(small[0], small[1]), g.add(small[2], small[3]))
    g.output("y", g.concat(total, total, total, axis=0))
    assert plan_memory(g).arena_bytes == 4 * 64


def test_no_values_take_no_memory() -> None:
    g = Graph()
    g.output("x", g.input("x", (4,)))
    plan = plan_memory(g)
    assert (plan.arena_bytes, plan.peak_bytes) == (0, 0)


def test_empty_values_have_a_place() -> None:
    g = Graph()
    y = g.output("y", g.neg(g.input("x", (0, 4))))
    assert plan_memory(g).places[y].kind == "arena"
