"""Graphs in Graphviz' DOT language."""

from __future__ import annotations

from .graph_notes import Note, NotedGraph

_SHAPES = {"input": "ellipse", "constant": "note", "state": "cylinder"}


def dot(noted: NotedGraph) -> str:
    """A directed graph with a cluster for each group; edges carry the shapes of values."""
    lines = [f"digraph {quote(noted.graph.name)} {{", "  node [shape=box, fontsize=10];"]
    lines.append("  edge [fontsize=8];")
    for i, (group, notes) in enumerate(noted.groups.items()):
        lines.append(f"  subgraph cluster_{i} {{")
        lines.append(f"    label={quote(group)};")
        lines += [f"    {_node(note)}" for note in notes]
        lines.append("  }")
    for note in noted.notes:
        for value in note.node.inputs:
            if value is not None:
                label = quote(str(value.spec))
                lines.append(f"  n{value.node.id} -> n{note.node.id} [label={label}];")
    for i, (name, value) in enumerate(noted.graph.outputs.items()):
        lines.append(f"  out{i} [shape=ellipse, label={quote(name)}];")
        lines.append(f"  n{value.node.id} -> out{i} [label={quote(str(value.spec))}];")
    return "\n".join([*lines, "}"]) + "\n"


def _node(note: Note) -> str:
    node = note.node
    shape = _SHAPES.get(node.op.name, "box")
    label = quote(f"%{node.id} {node.op.name}", node.name, str(note))
    return f"n{node.id} [shape={shape}, label={label}];"


def quote(*lines: str) -> str:
    """A quoted string of some lines; what DOT would take for an escape is none."""
    safe = ("".join(c if c.isprintable() else "?" for c in line) for line in lines)
    return '"' + "\\n".join(s.replace("\\", "\\\\").replace('"', '\\"') for s in safe) + '"'
