"""A layered picture of a few nodes as SVG: each stands below all that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .graph_notes import Note

WIDTH, HEIGHT, GAP_X, GAP_Y, LETTERS = 118, 30, 12, 22, 19


def picture(notes: Sequence[Note], share: dict[int, float]) -> str:
    """The nodes that are not leaves, as links to #n<id>, and the edges among them.

    share: a node's part of the whole, 0 to 1, by id; the darker, the more."""
    shown = [note for note in notes if not note.node.is_leaf]
    layers = _layers(shown)
    if not layers:
        return ""
    place = {
        note.node.id: (column, row) for row, layer in enumerate(layers) for column, note in layer
    }
    columns = 1 + max(column for column, _ in place.values())
    width = columns * (WIDTH + GAP_X)
    height = len(layers) * (HEIGHT + GAP_Y)
    most = max((share.get(note.node.id, 0.0) for note in shown), default=0.0) or 1.0
    parts = [f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}">']
    parts += [_edges(note, place) for note in shown]
    parts += [_box(n, place[n.node.id], share.get(n.node.id, 0.0) / most) for n in shown]
    return "".join([*parts, "</svg>"])


def _layers(shown: Sequence[Note]) -> list[list[tuple[int, Note]]]:
    """(column, note) of each layer. A node's layer is one below the lowest of its sources; it
    takes the free column nearest to theirs."""
    depth: dict[int, int] = {}
    column: dict[int, int] = {}
    layers: list[list[tuple[int, Note]]] = []
    for note in shown:
        sources = [v.node.id for v in note.node.inputs if v is not None and v.node.id in depth]
        row = 1 + max((depth[s] for s in sources), default=-1)
        if row == len(layers):
            layers.append([])
        wanted = sum(column[s] for s in sources) / len(sources) if sources else 0.0
        taken = {c for c, _ in layers[row]}
        free = [c for c in range(len(taken) + round(wanted) + 1) if c not in taken]
        depth[note.node.id] = row
        column[note.node.id] = min(free, key=lambda c: abs(c - wanted))
        layers[row].append((column[note.node.id], note))
    return layers


def _corner(place: tuple[int, int]) -> tuple[int, int]:
    return place[0] * (WIDTH + GAP_X) + GAP_X // 2, place[1] * (HEIGHT + GAP_Y) + GAP_Y // 2


def _edges(note: Note, places: dict[int, tuple[int, int]]) -> str:
    x, y = _corner(places[note.node.id])
    parts = []
    for value in note.node.inputs:
        if value is not None and value.node.id in places:
            a, b = _corner(places[value.node.id])
            a, b, c = a + WIDTH // 2, b + HEIGHT, x + WIDTH // 2
            half = (b + y) // 2
            parts.append(f"M{a},{b}C{a},{half},{c},{half},{c},{y}")
    return f'<path d="{"".join(parts)}"/>' if parts else ""


def _box(note: Note, place: tuple[int, int], heat: float) -> str:
    x, y = _corner(place)
    node = note.node
    middle = x + WIDTH // 2
    name = node.name.removeprefix(note.group).lstrip(".")
    return (
        f'<a href="#n{node.id}"><rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}"'
        f' style="--heat:{heat:.2f}"/><text x="{middle}" y="{y + 13}">{safe(_short(node.op.name))}'
        f'</text><text class="s" x="{middle}" y="{y + 24}">{safe(_short(name))}</text></a>'
    )


def _short(text: str) -> str:
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 1]}…"


def safe(text: str) -> str:
    """Text for HTML, in elements and in quoted attributes; what is not printable is spelled out."""
    return escape("".join(c if c.isprintable() else repr(c)[1:-1] for c in text))
