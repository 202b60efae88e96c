"""Dead code: nodes that no output and no state write needs."""

from __future__ import annotations

from ..builder import Graph
from ..node import Node, Value
from ..verify import state_versions


def live_nodes(graph: Graph) -> list[Node]:
    """The nodes that outputs and state writes need, in order. State writes count as needed; writes
    to memory that ends with the run do not."""
    wanted = {v.node.id for v in graph.outputs.values()}
    states = state_versions(graph)
    live: list[Node] = []
    for node in reversed(graph.nodes):
        if node.id in wanted or any(v in states for v in node.written().values()):
            live.append(node)
            wanted.update(v.node.id for v in node.inputs if v is not None)
    return live[::-1]


def eliminate(graph: Graph) -> Graph:
    """A graph of the live nodes only, renumbered. Inputs stay, used or not, as its interface."""
    keep = {n.id for n in live_nodes(graph)}
    keep |= {n.id for n in graph.nodes if n.op.name == "input"}
    if len(keep) == len(graph.nodes):
        return graph.copy()
    out = Graph(graph.name)
    moved: dict[int, Node] = {}
    for node in graph.nodes:
        if node.id not in keep:
            continue
        inputs = tuple(
            Value(moved[v.node.id], v.index) if v is not None else None for v in node.inputs
        )
        moved[node.id] = out.adopt(node, inputs)
    out.outputs = {k: Value(moved[v.node.id], v.index) for k, v in graph.outputs.items()}
    out.data = {k: v for k, v in graph.data.items() if k in out.leaves}
    return out
