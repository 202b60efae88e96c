"""Fusing: nodes replaced by one that does their work, where a backend has a kernel for it.

What may be replaced by what stands with the fused ops, `Op.fusions`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..builder import Graph
from ..errors import GraphError
from ..fusion import Fusion, Uses, label
from ..node import Node, Value, specs_of
from ..op import OPS, Op, inferred, make_op
from ..spec import TensorSpec
from ..verify import verify

Takes = Callable[[Node, Sequence[Node]], bool]


def fuse(graph: Graph, among: Iterable[str], takes: Takes) -> Graph:
    """A graph with fused nodes of ops of these names where they are found and taken, verified.

    takes is asked about a fused node with the nodes that it would stand for, and about a node with
    itself alone where fusing leaves gaps between the rows of what it reads. Fusions that cover more
    go first. The order of nodes stays but for those that are fused; so do leaves, states, outputs
    and the specs of outputs. The same graph comes back when nothing is fused."""
    ops = [OPS[name] for name in sorted(set(among)) if name in OPS and OPS[name].fuses]
    uses = Uses(graph)
    found = _candidates(graph, ops, uses) if ops else []
    while found:
        chosen = _Chooser(graph, uses, takes).choose(found)
        if not chosen:
            break
        try:
            builder = _Builder(graph, chosen)
            made = builder.run()
            refused = builder.refused(takes)
        except _Unfit as unfit:
            refused = unfit.fusions
        if not refused:
            verify(made)
            return made
        found = [f for f in found if f not in refused]
    return graph


def _candidates(graph: Graph, ops: list[type[Op]], uses: Uses) -> list[Fusion]:
    """All that is found: the largest first, and else in the order of the graph."""
    of: dict[str, list[type[Op]]] = {}
    for op in ops:
        for name in op.fuses:
            of.setdefault(name, []).append(op)
    found = [f for n in graph.nodes for op in of.get(n.op.name, ()) for f in op.fusions(n, uses)]
    return sorted(found, key=lambda f: (-len(f.computed), f.first.id))


@dataclass(frozen=True, eq=False)
class _Placed:
    """A fusion that was chosen, and the id of the node in whose place the fused one stands."""

    fusion: Fusion
    place: int


class _Chooser:
    """The choice of fusions. A node's place in the order is its id, or that of one of the nodes
    that it is fused with; views and leaves have none: they go where they are needed."""

    def __init__(self, graph: Graph, uses: Uses, takes: Takes) -> None:
        self.graph, self.uses, self.takes = graph, uses, takes
        self.place: dict[Node, int] = {}

    def choose(self, candidates: list[Fusion]) -> list[_Placed]:
        """Those that go together: a candidate goes before later ones."""
        chosen = []
        for fusion in candidates:
            if not self.place.keys().isdisjoint(fusion.covers):
                continue
            at = self._fits(fusion)
            if at is not None and self._taken(fusion):
                self.place.update((node, at) for node in fusion.covers)
                chosen.append(_Placed(fusion, at))
        return chosen

    def _fits(self, fusion: Fusion) -> int | None:
        """Where in the order the fused node can stand; None where it cannot."""
        covers = set(fusion.covers)
        after, before = -1, len(self.graph.nodes)
        for value in fusion.inputs:
            if value is not None:
                after = max(after, self._made_at(value, covers))
        for node in fusion.covers:
            for value in node.values:
                readers = [r for r in self.uses.of(value) if r not in covers]
                if value in fusion.results:
                    before = min([before, *map(self._read_at, readers)])
                elif readers or value in self.uses.outputs:
                    return None
        return min((n.id for n in fusion.computed if after < n.id < before), default=None)

    def _made_at(self, value: Value, covers: set[Node]) -> int:
        """The place of a value's maker; past the end if that is covered."""
        node = value.node
        if node in covers:
            return len(self.graph.nodes)
        if node.is_leaf:
            return -1
        if node.op.view and node.inputs[0] is not None:
            return self._made_at(node.inputs[0], covers)
        return self.place.get(node, node.id)

    def _read_at(self, reader: Node) -> int:
        """The place of a reader; of a view, of its first one."""
        if not reader.op.view:
            return self.place.get(reader, reader.id)
        places = map(self._read_at, self.uses.of(reader.value()))
        return min(places, default=len(self.graph.nodes))

    def _taken(self, fusion: Fusion) -> bool:
        """Whether the op and the backend take the fused node, and outputs stay without gaps."""
        try:
            fusion.op.require_inputs(fusion.inputs)
            specs = inferred(fusion.op, specs_of(fusion.inputs))
        except GraphError:
            return False
        for value, (output, _) in fusion.results.items():
            if value in self.uses.outputs and value.spec.size != specs[output].size:
                return False
        first = fusion.first
        node = Node(first.id, fusion.op, fusion.inputs, specs, first.name, first.where)
        return self.takes(node, fusion.computed)


class _Unfit(Exception):
    """A node does not take what fusions make of its inputs."""

    def __init__(self, fusions: set[Fusion]) -> None:
        super().__init__()
        self.fusions = fusions


class _Builder:
    """The graph being made; `moved` maps values of the given one to it.

    Views and leaves stand before their first reader."""

    def __init__(self, source: Graph, chosen: list[_Placed]) -> None:
        self.source = source
        self.chosen = {placed.place: placed.fusion for placed in chosen}
        self.covered = {node for placed in chosen for node in placed.fusion.covers}
        self.graph = Graph(source.name)
        self.graph.data = dict(source.data)
        self.moved: dict[Value, Value] = {}
        self.fused: dict[Node, Fusion] = {}
        self.changed: dict[Node, list[Node]] = {}  # those whose inputs have other layouts now

    def run(self) -> Graph:
        """The graph. Raises _Unfit."""
        for node in self.source.nodes:
            if node.id in self.chosen:
                self._fuse(self.chosen[node.id])
            elif node.is_leaf:
                self._value(node.value())
            elif node not in self.covered and not node.op.view:
                self._copy(node)
        self.graph.outputs = {k: self._value(v) for k, v in self.source.outputs.items()}
        return self.graph

    def refused(self, takes: Takes) -> set[Fusion]:
        """The fusions that give nodes layouts which are not taken."""
        bad = [self._cause(n, n.inputs) for n, was in self.changed.items() if not takes(n, was)]
        return set().union(*bad)

    def _value(self, value: Value) -> Value:
        """A value of the source in this graph."""
        if value not in self.moved:
            self._copy(value.node)
        return self.moved[value]

    def _copy(self, node: Node) -> None:
        inputs = self._inputs(node.inputs)
        alike = specs_of(inputs) == specs_of(node.inputs)
        made = self._add(node.op, inputs, node.name, node.where, node.specs if alike else None)
        if node.is_leaf:
            self.graph.leaves[made.name] = made
        if not alike and not node.op.view:
            self.changed[made] = [node]
        self.moved.update(zip(node.values, made.values, strict=True))

    def _fuse(self, fusion: Fusion) -> None:
        inputs, name = self._inputs(fusion.inputs), label(fusion.computed)
        try:
            made = self._add(fusion.op, inputs, name, fusion.first.where)
        except _Unfit:
            raise _Unfit({fusion}) from None
        self.fused[made] = fusion
        if specs_of(inputs) != specs_of(fusion.inputs):
            self.changed[made] = fusion.computed
        for old, (output, start) in fusion.results.items():
            self.moved[old] = self._part(made.value(output), start, old)

    def _inputs(self, values: tuple[Value | None, ...]) -> tuple[Value | None, ...]:
        moved = self.moved
        return tuple([v and (moved.get(v) or self._value(v)) for v in values])

    def _add(
        self,
        op: Op,
        inputs: tuple[Value | None, ...],
        name: str,
        where: str,
        specs: tuple[TensorSpec, ...] | None = None,
    ) -> Node:
        """A node. specs: what the op gives for these inputs, if that is known."""
        if specs is None:
            try:
                specs = inferred(op, specs_of(inputs))
            except GraphError:
                raise _Unfit(self._cause(None, inputs)) from None
        made = Node(len(self.graph.nodes), op, inputs, specs, name, where)
        self.graph.nodes.append(made)
        return made

    def _part(self, whole: Value, start: int, old: Value) -> Value:
        """What an output of a fused node holds of an old value, in its shape."""
        if old.shape == whole.shape:
            return whole
        axis = whole.spec.rank - 1
        stop = start + math.prod(old.shape[axis:])
        part = whole
        if stop - start != whole.shape[-1]:
            part = self._view("view", {"axis": axis, "start": start, "stop": stop}, part, old.node)
        if part.shape != old.shape:
            part = self._view("reshape", {"shape": old.shape}, part, old.node)
        return part

    def _view(self, name: str, attributes: dict[str, Any], of: Value, like: Node) -> Value:
        return self._add(make_op(name, attributes), (of,), like.name, like.where).value()

    def _cause(self, node: Node | None, inputs: Sequence[Value | None]) -> set[Fusion]:
        """The fusion that made a node, or those that made what a node of the source reads."""
        if node in self.fused:
            return {self.fused[node]}
        makers = set()
        for value in inputs:
            while value is not None and value.node.op.view:
                value = value.node.inputs[0]
            if value is not None and value.node in self.fused:
                makers.add(self.fused[value.node])
        return makers
