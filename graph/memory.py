"""Where every value of a graph lives: liveness, in-place reuse, offsets in one arena."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .builder import Graph
from .node import Node, Value

ALIGN = 64


class Place(NamedTuple):
    """kind: input, constant, state (buffer `name`) or arena; offset: bytes into that buffer."""

    kind: str
    name: str
    offset: int


@dataclass(frozen=True)
class MemoryPlan:
    """places of all values; arena_bytes to allocate; peak_bytes live at once at worst."""

    places: dict[Value, Place]
    arena_bytes: int
    peak_bytes: int


class _Arena:
    """Best-fit allocation over time: blocks are taken and given back in program order."""

    def __init__(self) -> None:
        self.free: list[tuple[int, int]] = []  # offset, size, sorted by offset
        self.end = self.used = self.peak = 0

    def take(self, size: int) -> int:
        self.used += size
        self.peak = max(self.peak, self.used)
        fits = [(length, at) for at, length in self.free if length >= size]
        if fits:
            length, at = min(fits)
            self.free.remove((at, length))
            if length > size:
                self._insert(at + size, length - size)
            return at
        at = self.end
        if self.free and sum(self.free[-1]) == self.end:
            at = self.free.pop()[0]
        self.end = at + size
        return at

    def give(self, at: int, size: int) -> None:
        self.used -= size
        self._insert(at, size)

    def _insert(self, at: int, size: int) -> None:
        merged = [(at, size)]
        for other in self.free:
            if other[0] + other[1] == merged[0][0]:
                merged[0] = (other[0], other[1] + merged[0][1])
            elif merged[0][0] + merged[0][1] == other[0]:
                merged[0] = (merged[0][0], merged[0][1] + other[1])
            else:
                merged.append(other)
        self.free = sorted(merged)


def storage_roots(graph: Graph) -> dict[Value, tuple[Value, int]]:
    """For each value its memory's owner, through views and state writes, and the offset in it."""
    roots: dict[Value, tuple[Value, int]] = {}
    for node in graph.nodes:
        written = node.written()
        for index, value in enumerate(node.values):
            if index in written:
                roots[value] = roots[written[index]]
            elif node.op.view and node.inputs[0] is not None:
                root, offset = roots[node.inputs[0]]
                roots[value] = (root, offset + node.op.view_offset(node.inputs[0].spec))
            else:
                roots[value] = (value, 0)
    return roots


def _last_uses(graph: Graph, roots: dict[Value, tuple[Value, int]]) -> dict[Value, int]:
    last: dict[Value, int] = {}
    for node in graph.nodes:
        for value in node.values:
            last[roots[value][0]] = node.id
        for read in node.inputs:
            if read is not None:
                last[roots[read][0]] = node.id
    for value in graph.outputs.values():
        last[roots[value][0]] = len(graph.nodes)
    return last


def _reusable(
    node: Node,
    index: int,
    held: dict[Value, int],
    last: dict[Value, int],
    roots: dict[Value, tuple[Value, int]],
) -> Value | None:
    """The input whose memory this output may take: declared, dying here, whole, alike, and not
    read through another input too, be it a view."""
    if not node.op.inplace:
        return None
    names = [n.strip("?*") for n in node.op.inputs]
    for source in node.op.inplace.get(node.output_names()[index], "").split():
        value = node.inputs[names.index(source)]
        if value is None or value not in held or last[value] != node.id:
            continue
        alike = value.spec.contiguous and value.spec.nbytes == node.specs[index].nbytes
        users = [v for v in node.inputs if v is not None and roots[v][0] is value]
        if alike and len(users) == 1:
            return value
    return None


def plan_memory(graph: Graph) -> MemoryPlan:
    """Assign every value a place. Nodes run in graph order, one at a time."""
    roots = storage_roots(graph)
    last = _last_uses(graph, roots)
    arena = _Arena()
    base: dict[Value, Place] = {}
    held: dict[Value, int] = {}  # arena owners alive now -> block size
    dying: dict[int, list[Value]] = {}
    for owner, when in last.items():
        dying.setdefault(when, []).append(owner)
    for node in graph.nodes:
        for index, spec in enumerate(node.specs):
            value = node.values[index]
            if roots[value][0] is not value:
                continue
            if node.is_leaf:
                base[value] = Place(node.op.name, node.name, 0)
                continue
            taken = _reusable(node, index, held, last, roots)
            if taken is not None:
                held[value] = held.pop(taken)
                base[value] = base[taken]
                continue
            size = max(ALIGN, -(-spec.nbytes // ALIGN) * ALIGN)
            held[value] = size
            base[value] = Place("arena", "", arena.take(size))
        for owner in dying.get(node.id, ()):
            if owner in held:
                arena.give(base[owner].offset, held.pop(owner))
    places = {}
    for value, (root, offset) in roots.items():
        at = base[root]
        places[value] = Place(at.kind, at.name, at.offset + offset) if offset else at
    return MemoryPlan(places, arena.end, arena.peak)
