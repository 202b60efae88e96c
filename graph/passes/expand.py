"""Expansion: fused nodes replaced by the more primitive ones that they are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..builder import Graph
from ..errors import GraphError
from ..leaves import Constant, Input, Leaf, State
from ..node import Node, Value
from ..op import Op
from ..verify import verify

Keep = Callable[[Node], bool]


def expansion(node: Node) -> Graph | None:
    """What a node's op is made of, as a graph of its own; None for an op that is not fused.

    Leaves named after the op's inputs stand for the node's inputs, outputs are named after the
    op's. Raises GraphError when the results are not what the op's shape rule says."""
    if not _fused(node):
        return None
    g = Graph(node.op.name)
    given = _stand_ins(g, node)
    made = node.op.expand(g, *given)
    if made is None:
        return None
    own = [n for n in g.nodes if n.is_leaf and n.name not in g.data]
    if len(own) > sum(v is not None for v in given):
        raise GraphError(f"{node.op.name}: expansion adds {own[-1].op.name} {own[-1].name!r}")
    values = made if isinstance(made, tuple) else (made,)
    specs = tuple(v.spec for v in values)
    if specs != node.specs:
        got = ", ".join(map(str, specs))
        want = ", ".join(map(str, node.specs))
        raise GraphError(f"{node.op.name}: expansion should give {want}, got {got}")
    for name, value in zip(node.output_names(), values, strict=True):
        g.output(name, value)
    return g


def _stand_ins(g: Graph, node: Node) -> list[Value | None]:
    """A leaf for each input: constants and states stay such, all else comes from outside."""
    names = [n.strip("?*") for n in node.op.inputs]
    written = set(node.written().values())
    found: list[Value | None] = []
    for i, value in enumerate(node.inputs):
        if value is None:
            found.append(None)
            continue
        variadic = node.op.inputs[-1].startswith("*") and i >= len(names) - 1
        name = f"{names[-1]}.{i}" if variadic else names[i]
        kind: type[Leaf] = State if value in written else Input
        kind = Constant if isinstance(value.node.op, Constant) else kind
        found.append(g.add_leaf(kind(value.spec), name))
    return found


def expand(graph: Graph, keep: Keep) -> Graph:
    """A graph in which every fused node that is not kept gives way to its expansion, verified.

    keep is asked about nodes with an expansion only, those inside other expansions too. New nodes
    have the name and the source line of the node that they stand for; leaves, states and outputs
    stay. The same graph comes back when nothing is replaced.
    Raises GraphError for an expansion that does not fit its op or leads back to it."""
    if not any(_fused(node) and not keep(node) for node in graph.nodes):
        return graph
    expander = _Expander(graph, keep)
    made = expander.run()
    if not expander.replaced:
        return graph
    verify(made)
    return made


def _fused(node: Node) -> bool:
    """Whether its op may have an expansion."""
    return type(node.op).expand is not Op.expand


class _Expander:
    """The graph being made; `moved` maps values of the given one to it."""

    def __init__(self, source: Graph, keep: Keep) -> None:
        self.source, self.keep = source, keep
        self.graph = Graph(source.name)
        self.graph.data = dict(source.data)
        self.moved: dict[Value, Value] = {}
        self.replaced = False

    def run(self) -> Graph:
        """The source with its unkept fused nodes expanded."""
        for node in self.source.nodes:
            inputs = tuple(self.moved[v] if v is not None else None for v in node.inputs)
            for index, value in enumerate(self._emit(node, inputs, ())):
                self.moved[node.value(index)] = value
        self.graph.outputs = {k: self.moved[v] for k, v in self.source.outputs.items()}
        return self.graph

    def _emit(
        self, node: Node, inputs: tuple[Value | None, ...], within: tuple[str, ...]
    ) -> list[Value]:
        """The outputs of a node in the new graph; within: the ops that it is an expansion of."""
        parts = expansion(node) if _fused(node) and not self.keep(node) else None
        if parts is None:
            made = self.graph.adopt(node, inputs)
            return [made.value(i) for i in range(len(made.specs))]
        path = (*within, node.op.name)
        if node.op.name in within:
            raise GraphError(f"{path[0]}: expansion never ends: {' -> '.join(path)}")
        self.replaced = True
        moved: dict[Value, Value] = {}
        given = iter([v for v in inputs if v is not None])
        for part in parts.nodes:
            if part.is_leaf:
                own = part.name in parts.data
                moved[part.value()] = self._constant(parts, part) if own else next(given)
                continue
            label = ".".join(n for n in (node.name, part.name) if n)
            named = replace(part, name=label, where=node.where)
            sources = tuple(moved[v] if v is not None else None for v in part.inputs)
            for index, value in enumerate(self._emit(named, sources, path)):
                moved[part.value(index)] = value
        return [moved[v] for v in parts.outputs.values()]

    def _constant(self, parts: Graph, part: Node) -> Value:
        """An expansion's constant, under a name that no leaf of the source or the result has."""
        number = len(self.source.nodes)
        taken = self.graph.leaves.keys() | self.source.leaves.keys()
        while f"constant.{number}" in taken:
            number += 1
        return self.graph.constant(parts.data[part.name], f"constant.{number}")
