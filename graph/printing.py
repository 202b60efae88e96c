"""Graphs as text, one node a line; text.py reads it back.

graph "demo"
%0 = input "x" : f32[4,256]
%1 = constant "w" : f32[256]
%2 = rms_norm(%0, %1) {"eps": 1e-06} "norm" : f32[4,256]
return "y" = %2
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .node import Value

if TYPE_CHECKING:
    from .builder import Graph


def to_text(graph: Graph) -> str:
    """The graph's text form. Constant data is not part of it, only names and specs."""
    lines = [f"graph {json.dumps(graph.name)}"]
    for node in graph.nodes:
        specs = " ".join(map(str, node.specs))
        label = json.dumps(node.name)
        if node.is_leaf:
            lines.append(f"%{node.id} = {node.op.name} {label} : {specs}")
            continue
        inputs = ", ".join("_" if v is None else _ref(v) for v in node.inputs)
        attributes = json.dumps(node.op.attributes())
        lines.append(f"%{node.id} = {node.op.name}({inputs}) {attributes} {label} : {specs}")
    lines += [f"return {json.dumps(name)} = {_ref(v)}" for name, v in graph.outputs.items()]
    return "\n".join(lines) + "\n"


def _ref(value: Value) -> str:
    return f"%{value.node.id}" + (f".{value.index}" if value.index else "")
