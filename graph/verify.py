"""What every graph must satisfy, after building and after each pass; the default is to reject."""

from __future__ import annotations

from .builder import Graph
from .errors import GraphError
from .leaves import Constant, Input, State
from .node import Node, Value

Version = tuple[Node, int]


def verify(graph: Graph) -> None:
    """Raise GraphError for the first thing wrong with a graph: order, specs, names, overwrites."""
    _check_nodes(graph)
    for name, value in graph.outputs.items():
        known = value.node.id < len(graph.nodes) and graph.nodes[value.node.id] is value.node
        if not known or not 0 <= value.index < len(value.node.specs):
            raise GraphError(f"output {name!r} of graph {graph.name!r} is not one of its values")
    _check_writes(graph)


def _check_nodes(graph: Graph) -> None:
    names: set[str] = set()
    for place, node in enumerate(graph.nodes):
        if node.id != place:
            raise GraphError(f"{node.describe()} stands at place {place} of graph {graph.name!r}")
        for value in node.inputs:
            if value is None:
                continue
            if value.node.id >= place or graph.nodes[value.node.id] is not value.node:
                raise GraphError(f"{node.op.name}: input {value!r} is not an earlier value")
            if not 0 <= value.index < len(value.node.specs):
                raise GraphError(f"{node.op.name}: {value.node.describe()} has no such output")
        if node.is_leaf:
            if node.name in names:
                raise GraphError(f"two leaves are called {node.name!r}")
            names.add(node.name)
        node.op.require_inputs(node.inputs)
        specs = node.op.infer(*node.input_specs())
        if (specs if isinstance(specs, tuple) else (specs,)) != node.specs:
            raise GraphError(
                f"{node.op.name}: shape rule gives {specs}, node has {node.specs} "
                f"[{node.describe()}]"
            )


def memory_versions(graph: Graph) -> dict[Value, Version]:
    """For every value in memory that nodes may overwrite, directly or through views: which version
    of that memory it is. Only the memory of inputs and constants is never overwritten."""
    version: dict[Value, Version] = {}
    for node in graph.nodes:
        if isinstance(node.op, (Input, Constant)):
            continue
        if not node.op.view:
            version.update((node.value(i), (node, i)) for i in range(len(node.specs)))
        elif node.inputs[0] in version:
            version[node.value()] = version[node.inputs[0]]
    return version


def state_versions(graph: Graph) -> dict[Value, Version]:
    """The part of memory_versions that is state memory."""
    version: dict[Value, Version] = {}
    for node in graph.nodes:
        if isinstance(node.op, State):
            version[node.value()] = (node, 0)
        elif node.op.view and node.inputs[0] in version:
            version[node.value()] = version[node.inputs[0]]
        for index, old in node.written().items():
            if old in version:
                version[node.value(index)] = (node, index)
    return version


def ancestors(graph: Graph) -> list[int]:
    """For each node a bit set of the nodes it depends on, itself included."""
    sets: list[int] = []
    for node in graph.nodes:
        bits = 1 << node.id
        for value in node.inputs:
            if value is not None:
                bits |= sets[value.node.id]
        sets.append(bits)
    return sets


def _check_writes(graph: Graph) -> None:
    version, states = memory_versions(graph), state_versions(graph)
    writer: dict[Version, Node] = {}
    for node in graph.nodes:
        for old in node.written().values():
            _check_written(node, old, version)
            first = writer.setdefault(version[old], node)
            if first is not node:
                raise GraphError(
                    f"{node.op.name}: {_kind(old, states)} {old!r} is overwritten twice, first by "
                    f"{first.describe()}; write the newest version [{node.describe()}]"
                )
    before = ancestors(graph) if writer else []
    for node in graph.nodes:
        for value in node.inputs:
            over = writer.get(version[value]) if value in version else None
            if value is None or over is None or over is node or node.op.view:
                continue
            if not before[over.id] >> node.id & 1:
                raise GraphError(
                    f"{node.op.name}: reads {_kind(value, states)} {value!r}, which "
                    f"{over.describe()} overwrites without depending on this read "
                    f"[{node.describe()}]"
                )
    for name, value in graph.outputs.items():
        if value in version and version[value] in writer:
            kind = _kind(value, states)
            raise GraphError(f"output {name!r} is a {kind} that is overwritten later")


def _check_written(node: Node, old: Value, version: dict[Value, Version]) -> None:
    """Whether a node may overwrite this input."""
    if old not in version:
        raise GraphError(
            f"{node.op.name}: writes {old!r}, which is not a state but the memory of an input or "
            f"a constant; make it with g.state, or copy it with g.cont [{node.describe()}]"
        )
    seen = [v for v in node.inputs if v in version and version[v] == version[old]]
    if len(seen) > 1:
        raise GraphError(
            f"{node.op.name}: reads {old!r}, which it overwrites, through another input too; copy "
            f"it with g.cont [{node.describe()}]"
        )


def _kind(value: Value, states: dict[Value, Version]) -> str:
    return "state version" if value in states else "value"
