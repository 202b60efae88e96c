"""What every graph must satisfy, after building and after each pass; the default is to reject.

Every message names the node at fault and the source line that made it."""

from __future__ import annotations

from .builder import Graph
from .errors import GraphError
from .leaves import State
from .node import Node, Value
from .op import inferred

Version = tuple[Node, int]


def verify(graph: Graph) -> None:
    """Raise GraphError for the first thing wrong with a graph: order, specs, names, overwrites."""
    _check_nodes(graph)
    for name, value in graph.outputs.items():
        known = value.node.id < len(graph.nodes) and graph.nodes[value.node.id] is value.node
        if not known or not 0 <= value.index < len(value.node.specs):
            raise GraphError(
                f"output {name!r} of graph {graph.name!r} is not one of its values "
                f"[{value.node.describe()}]"
            )
    _check_writes(graph)


def _check_nodes(graph: Graph) -> None:
    leaves: dict[str, Node] = {}
    nodes = graph.nodes
    for place, node in enumerate(nodes):
        if node.id != place:
            raise GraphError(f"{node.describe()} stands at place {place} of graph {graph.name!r}")
        for value in node.inputs:
            if value is None:
                continue
            maker = value.node
            if not 0 <= value.index < len(maker.specs):
                raise GraphError(
                    f"{node.op.name}: {maker.describe()} has no such output: {value.index} "
                    f"[{node.describe()}]"
                )
            if maker.id >= place or nodes[maker.id] is not maker:
                raise _not_earlier(graph, node, value)
        if node.is_leaf:
            first = leaves.setdefault(node.name, node)
            if first is not node:
                raise GraphError(
                    f"two leaves are called {node.name!r}: {first.describe()} and {node.describe()}"
                )
        _check_specs(node)


def _not_earlier(graph: Graph, node: Node, value: Value) -> GraphError:
    """What is wrong with an input that is not an output of an earlier node."""
    maker = value.node
    if _depends(maker, node):
        why = f"a cycle through {maker.describe()}"
    elif any(maker is other for other in graph.nodes):
        why = f"{maker.describe()} makes it later"
    else:
        why = f"{maker.describe()} is not a node of graph {graph.name!r}"
    return GraphError(
        f"{node.op.name}: input {value!r} is not an earlier value: {why} [{node.describe()}]"
    )


def _depends(node: Node, on: Node) -> bool:
    """Whether a node is another or computed from it, in whatever order they stand."""
    seen, waiting = {node}, [node]
    while waiting:
        makers = {v.node for v in waiting.pop().inputs if v is not None} - seen
        seen |= makers
        waiting += makers
    return on in seen


def _check_specs(node: Node) -> None:
    """Whether the outputs are what the op makes of the inputs."""
    try:
        node.op.require_inputs(node.inputs)
        specs = inferred(node.op, node.input_specs())
    except GraphError as error:
        raise type(error)(f"{error} [{node.describe()}]") from None
    if specs != node.specs:
        want, have = (" ".join(map(str, s)) for s in (specs, node.specs))
        raise GraphError(
            f"{node.op.name}: shape rule gives {want}, node has {have} [{node.describe()}]"
        )


def memory_versions(graph: Graph) -> dict[Value, Version]:
    """For every value in memory that nodes may overwrite, directly or through views: which version
    of that memory it is. Only the memory of inputs and constants is never overwritten."""
    version: dict[Value, Version] = {}
    for node in graph.nodes:
        if node.is_leaf and not isinstance(node.op, State):
            continue
        if not node.op.view:
            for i, value in enumerate(node.values):
                version[value] = (node, i)
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
        for index, old in node.written().items() if node.op.writes else ():
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
    version = memory_versions(graph)
    writer: dict[Version, Node] = {}
    for node in graph.nodes:
        for old in node.written().values() if node.op.writes else ():
            _check_written(node, old, version)
            first = writer.setdefault(version[old], node)
            if first is not node:
                raise GraphError(
                    f"{node.op.name}: {_kind(graph, old)} {old!r} is overwritten twice, first by "
                    f"{first.describe()}; write the newest version [{node.describe()}]"
                )
    lost = {value: writer[at] for value, at in version.items() if at in writer}
    before: list[int] = []
    for node in graph.nodes:
        for value in node.inputs:
            if value not in lost or lost[value] is node or node.op.view:
                continue
            over, before = lost[value], before or ancestors(graph)
            if not before[over.id] >> node.id & 1:
                raise GraphError(
                    f"{node.op.name}: reads {_kind(graph, value)} {value!r}, which "
                    f"{over.describe()} overwrites without depending on this read "
                    f"[{node.describe()}]"
                )
    for name, value in graph.outputs.items():
        if value in lost:
            raise GraphError(
                f"output {name!r} is a {_kind(graph, value)} that is overwritten later, by "
                f"{lost[value].describe()} [{value.node.describe()}]"
            )


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


def _kind(graph: Graph, value: Value) -> str:
    return "state version" if value in state_versions(graph) else "value"
