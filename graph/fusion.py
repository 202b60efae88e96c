"""What a fused op says of the nodes that it may stand for: passes/fuse.py replaces them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .builder import Graph
from .node import Node, Value
from .op import Op


@dataclass(eq=False, slots=True)
class Fusion:
    """One op in place of several nodes of a graph.

    op, inputs: of the fused node; the inputs are values of that graph. covers: the nodes that it
    stands for, views between them included. results: for each value of theirs that nodes outside
    may read, the number of the fused node's output that holds it and the element of the output's
    last axis where it begins. A value has the output's shape, or a part of its last axis, which
    may be several axes of the value.

    computed: what it covers without the views; first: the first of these."""

    op: Op
    inputs: tuple[Value | None, ...]
    covers: tuple[Node, ...]
    results: Mapping[Value, tuple[int, int]]
    computed: list[Node] = field(init=False)
    first: Node = field(init=False)

    def __post_init__(self) -> None:
        self.computed = [node for node in self.covers if not node.op.view]
        self.first = min(self.computed, key=lambda node: node.id)


class Uses:
    """Who reads the values of a graph."""

    def __init__(self, graph: Graph) -> None:
        self._readers: dict[Value, list[Node]] = {}
        for node in graph.nodes:
            for value in node.inputs:
                if value is not None:
                    self._readers.setdefault(value, []).append(node)
        self.outputs = frozenset(graph.outputs.values())

    def of(self, value: Value) -> list[Node]:
        """The nodes that read a value, in order; one that reads it twice is there twice."""
        return self._readers.get(value, [])

    def only(self, value: Value, *names: str) -> Node | None:
        """The node that alone reads a value, if it is of an op of these names; None for an output
        of the graph."""
        readers = self.of(value)
        if value in self.outputs or len(readers) != 1 or readers[0].op.name not in names:
            return None
        return readers[0]


def maker(value: Value | None, *names: str) -> Node | None:
    """The node that makes a value, if it is of an op of these names."""
    return value.node if value is not None and value.node.op.name in names else None


def label(nodes: Iterable[Node]) -> str:
    """A name for what stands for several nodes: the scope of the first, and their own names."""
    names = [node.name for node in nodes if node.name]
    if not names:
        return ""
    scope = names[0].rpartition(".")[0]
    own = [name.removeprefix(scope + ".") if scope else name for name in names]
    return (scope + "." if scope else "") + "+".join(dict.fromkeys(own))
