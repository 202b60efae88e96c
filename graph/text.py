"""Graphs from their text form, which printing.py describes and writes."""

from __future__ import annotations

import json
import re

from .builder import Graph
from .errors import GraphError
from .leaves import LEAVES
from .node import Node, Value
from .op import make_op
from .printing import to_text
from .spec import parse_spec

__all__ = ["parse", "to_text"]

_LEAF = re.compile(r'%(\d+) = (\w+) ("(?:[^"\\]|\\.)*") : (\S+)$')
_NODE = re.compile(r'%(\d+) = (\w+)\(([^)]*)\) (\{.*\}) ("(?:[^"\\]|\\.)*") : (.+)$')
_RETURN = re.compile(r'return ("(?:[^"\\]|\\.)*") = (\S+)$')


def parse(text: str) -> Graph:
    """The graph that printed as text. Raises GraphError naming the line that is wrong."""
    graph: Graph | None = None
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line:
            continue
        try:
            if graph is None:
                if not line.startswith("graph "):
                    raise GraphError('should start with: graph "name"')
                graph = Graph(json.loads(line[6:]))
            else:
                _parse_line(graph, line)
        except (GraphError, ValueError) as error:
            raise GraphError(f"graph text, line {number}: {error}: {line[:80]}") from None
    if graph is None:
        raise GraphError("graph text is empty")
    return graph


def _parse_line(graph: Graph, line: str) -> None:
    numbered = re.match(r"%(\d+) = ", line)
    if numbered and int(numbered[1]) != len(graph.nodes):
        raise GraphError(f"the next node should be %{len(graph.nodes)}")
    if leaf := _LEAF.match(line):
        cls = LEAVES.get(leaf[2])
        if cls is None:
            raise GraphError(f"{leaf[2]!r} is not one of {', '.join(LEAVES)}")
        graph.add_leaf(cls(parse_spec(leaf[4])), json.loads(leaf[3]))
    elif found := _NODE.match(line):
        refs = [r.strip() for r in found[3].split(",") if r.strip()]
        inputs = tuple(None if r == "_" else _value(graph, r) for r in refs)
        node = graph.apply(make_op(found[2], json.loads(found[4])), inputs)
        specs = tuple(parse_spec(s) for s in found[6].split())
        if specs != node.specs:
            raise GraphError(f"specs should be {' '.join(map(str, node.specs))}")
        name = json.loads(found[5])
        graph.nodes[-1] = Node(node.id, node.op, node.inputs, node.specs, name, "")
    elif out := _RETURN.match(line):
        graph.output(json.loads(out[1]), _value(graph, out[2]))
    else:
        raise GraphError("is not a node, leaf or return")


def _value(graph: Graph, text: str) -> Value:
    found = re.fullmatch(r"%(\d+)(?:\.(\d+))?", text)
    if found is None:
        raise GraphError(f"{text!r} is not a value like %3 or %3.1")
    node, index = int(found[1]), int(found[2] or 0)
    if node >= len(graph.nodes) or index >= len(graph.nodes[node].specs):
        raise GraphError(f"{text} is not defined above")
    return graph.nodes[node].value(index)
