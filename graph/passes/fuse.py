"""Fusing: nodes replaced by one that does their work, where a backend has a kernel for it.

What may be replaced by what stands with the fused ops, `Op.fusions`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from ..builder import Graph
from ..errors import GraphError
from ..fusion import Fusion, Uses, label
from ..node import Node, Value
from ..op import OPS, Op, inferred, make_op
from ..verify import verify

Takes = Callable[[Node, list[Node]], bool]


def fuse(graph: Graph, among: Iterable[str], takes: Takes) -> Graph:
    """A graph with fused nodes of ops of these names where they are found and taken, verified.

    takes is asked about a fused node with the nodes that it would stand for, and about a node with
    itself alone where fusing gives an input of it gaps between its rows. Larger ones go first, and
    the order of nodes is kept but for those that are fused. Leaves, states and outputs stay, and so
    do the specs of outputs. The same graph comes back when nothing is fused."""
    ops = [OPS[name] for name in sorted(set(among)) if name in OPS and OPS[name].fuses]
    if not ops:
        return graph
    found = _Fuser(graph, takes).choose(_candidates(graph, ops))
    while found:
        made = _Builder(graph, found)
        built = made.run()
        refused = made.refused(takes)
        if not refused:
            verify(built)
            return built
        found = [f for f in found if f not in refused]
    return graph


def _candidates(graph: Graph, ops: list[type[Op]]) -> list[Fusion]:
    """All that is found, the largest first and else in the order of the graph."""
    of: dict[str, list[type[Op]]] = {}
    for op in ops:
        for name in op.fuses:
            of.setdefault(name, []).append(op)
    uses = Uses(graph)
    found = [f for n in graph.nodes for op in of.get(n.op.name, ()) for f in op.fusions(n, uses)]
    return sorted(found, key=lambda f: (-len(f.computed), min(n.id for n in f.covers)))


def _made(fusion: Fusion, id: int, inputs: tuple[Value | None, ...]) -> Node:
    """The fused node on these inputs. Raises GraphError where its op does not take them."""
    fusion.op.require_inputs(inputs)
    specs = inferred(fusion.op, tuple(v.spec if v is not None else None for v in inputs))
    first = min(fusion.computed, key=lambda n: n.id)
    return Node(id, fusion.op, inputs, specs, label(fusion.computed), first.where)


class _Fuser:
    """The choice of fusions. A node's place in the order is its id, or that of one of the nodes
    that it is fused with; views and leaves have none: they go where they are needed."""

    def __init__(self, graph: Graph, takes: Takes) -> None:
        self.graph, self.takes, self.uses = graph, takes, Uses(graph)
        self.place: dict[Node, int] = {}

    def choose(self, candidates: list[Fusion]) -> list[Fusion]:
        """Those that go together, in the order in which they are preferred."""
        chosen = []
        for fusion in candidates:
            if any(node in self.place for node in fusion.computed):
                continue
            at = self._fits(fusion)
            if at is not None and self._taken(fusion):
                self.place.update((node, at) for node in fusion.covers)
                chosen.append(fusion)
        return chosen

    def _fits(self, fusion: Fusion) -> int | None:
        """Where in the order the fused node can stand; None where it cannot."""
        covers = set(fusion.covers)
        after, before = -1, len(self.graph.nodes)
        for value in fusion.inputs:
            if value is not None:
                after = max(after, self._place(value, covers))
        for node in fusion.covers:
            for value in node.values:
                readers = [r for r in self.uses.of(value) if r not in covers]
                if value not in fusion.results:
                    if readers or value in self.uses.outputs:
                        return None
                    continue
                before = min([before, *map(self._first_use, readers)])
        places = [n.id for n in fusion.computed if after < n.id < before]
        return min(places, default=None)

    def _place(self, value: Value, covers: set[Node]) -> int:
        """Where in the order a value is made; past the end where the covered nodes make it."""
        node = value.node
        if node in covers:
            return len(self.graph.nodes)
        if node.is_leaf:
            return -1
        if node.op.view and node.inputs[0] is not None:
            return self._place(node.inputs[0], covers)
        return self.place.get(node, node.id)

    def _first_use(self, reader: Node) -> int:
        """Where in the order a reader stands, or the first one of a view."""
        if not reader.op.view:
            return self.place.get(reader, reader.id)
        uses = map(self._first_use, self.uses.of(reader.value()))
        return min(uses, default=len(self.graph.nodes))

    def _taken(self, fusion: Fusion) -> bool:
        try:
            node = _made(fusion, min(n.id for n in fusion.covers), fusion.inputs)
        except GraphError:
            return False
        for value, (output, _) in fusion.results.items():
            # An output of the graph would get gaps between its rows.
            if value in self.uses.outputs and value.spec.size != node.specs[output].size:
                return False
        return self.takes(node, fusion.computed)


class _Builder:
    """The graph being made; `moved` maps values of the given one to it."""

    def __init__(self, source: Graph, chosen: list[Fusion]) -> None:
        self.source = source
        self.of = {node: fusion for fusion in chosen for node in fusion.covers}
        self.graph = Graph(source.name)
        self.graph.data = dict(source.data)
        self.moved: dict[Value, Value] = {}
        self.fused: list[tuple[Node, Fusion]] = []
        self.strange: list[Node] = []  # nodes whose inputs are laid out otherwise than before
        self.failed: list[Fusion] = []
        self._made_by: dict[Node, Fusion] = {}

    def run(self) -> Graph:
        """The source with its nodes fused."""
        waiting = {f: len(f.computed) for f in self.of.values()} if False else {}
        del waiting
        return self.graph
