"""What is worth knowing of each node of a compiled step, and graphs as text that says it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

from ..backends import Backend
from ..backends.cpu import CpuBackend
from ..backends.debug import unwatched
from ..bench.profile import StepProfile
from ..graph import Graph, Node
from ..graph.op import Cost
from ..graph.text import parse, to_text

_LAYER = re.compile(r"blk\.\d+(?=\.|$)")
_MARK = "  # "


@dataclass(frozen=True)
class Note:
    """A node with its group ("blk.3", "inputs", ...), what runs it, its work and its time.

    cost: None for leaves and views, where nothing runs; seconds: None where none was measured."""

    node: Node
    group: str
    where: str
    cost: Cost | None
    seconds: float | None

    @property
    def nbytes(self) -> int:
        """Bytes of the node's results."""
        return sum(spec.nbytes for spec in self.node.specs)

    @property
    def moved(self) -> int:
        """Bytes read and written."""
        return self.cost.read + self.cost.write if self.cost else 0

    def __str__(self) -> str:
        parts = [self.where]
        if self.cost is None:
            parts.append(size(self.nbytes))
        else:
            parts.append(f"{figure(self.cost.flops)}FLOP")
            parts.append(f"reads {size(self.cost.read)}, writes {size(self.cost.write)}")
        if self.seconds is not None:
            parts.append(f"{1e6 * self.seconds:.1f} us")
        return " | ".join(parts)


@dataclass(frozen=True)
class NotedGraph:
    """A graph and a note for each of its nodes, in order."""

    graph: Graph
    notes: list[Note]
    title: str
    groups: dict[str, list[Note]] = field(init=False)

    def __post_init__(self) -> None:
        groups: dict[str, list[Note]] = {}
        for note in self.notes:
            groups.setdefault(note.group, []).append(note)
        object.__setattr__(self, "groups", groups)

    @cached_property
    def measured(self) -> bool:
        """Whether any node has a time."""
        return any(note.seconds is not None for note in self.notes)

    @cached_property
    def total(self) -> Totals:
        """The sums over all nodes."""
        return totals(self.notes)


@dataclass(frozen=True)
class Totals:
    """Sums over some nodes: nodes that run, operations, bytes moved, seconds."""

    running: int
    flops: int
    moved: int
    seconds: float


def totals(notes: list[Note]) -> Totals:
    """The sums over some notes."""
    costs = [note.cost for note in notes if note.cost]
    return Totals(
        len(costs),
        sum(cost.flops for cost in costs),
        sum(note.moved for note in notes),
        sum(note.seconds or 0.0 for note in notes),
    )


def note_graph(profile: StepProfile, title: str) -> NotedGraph:
    """Notes for every node of a compiled step."""
    graph, groups = profile.graph, group_nodes(profile.graph)
    notes = []
    for node in graph.nodes:
        quiet = node.is_leaf or node.op.view
        cost = None if quiet else node.op.cost(*node.input_specs())
        where = place_of(profile.backend, node)
        notes.append(Note(node, groups[node.id], where, cost, profile.seconds.get(node.id)))
    return NotedGraph(graph, notes, title)


def place_of(backend: Backend, node: Node) -> str:
    """What runs a node of a step: "cpu avx2", "packed" where the kernel reads weights rearranged;
    "view" where nothing runs; the kind of a leaf."""
    if node.is_leaf:
        return node.op.name
    if node.op.view:
        return "view"
    plain = unwatched(backend)
    if not isinstance(plain, CpuBackend):
        return backend.name
    choice = plain.choose(node, exact=True)
    isa = choice.kernel.isa if choice.kernel is not None else "no kernel"
    return f"{backend.name} {isa}" + (" packed" if choice.packed else "")


def group_nodes(graph: Graph) -> list[str]:
    """The group of every node: its layer, else "before" or "after" the layers, or "inputs".

    Weights and states are in the group of the first node that reads them."""
    groups: list[str] = []
    current = "before layers"
    for node in graph.nodes:
        found = None if node.is_leaf else _LAYER.match(node.name)
        if found:
            current = found[0]
        elif not node.is_leaf and current != "before layers":
            current = "after layers"
        groups.append("inputs" if node.op.name == "input" else current)
    readers: dict[int, str] = {}
    for node in graph.nodes:
        for value in node.inputs:
            if value is not None:
                readers.setdefault(value.node.id, groups[node.id])
    for node in graph.nodes:
        if node.is_leaf and node.op.name != "input":
            groups[node.id] = readers.get(node.id, groups[node.id])
    return groups


def noted_text(noted: NotedGraph) -> str:
    """The graph's text form with each node's note behind it, after two blanks and "#"."""
    lines = to_text(noted.graph).splitlines()
    for i, note in enumerate(noted.notes, 1):
        lines[i] += f"{_MARK}{note}"
    return "\n".join(lines) + "\n"


def parse_noted(text: str) -> Graph:
    """The graph that printed as text, with notes or without. Raises GraphError."""
    return parse("\n".join(_without_note(line) for line in text.splitlines()))


def _without_note(line: str) -> str:
    """Quotes end before a note begins, so that a mark inside of a name is none."""
    bare, _, note = line.rpartition(_MARK)
    return bare if bare and '"' not in note else line


def figure(number: float) -> str:
    """Three digits and a prefix: 12.3 M."""
    for power, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= power:
            return f"{number / power:.3g} {prefix}"
    return f"{number:.3g} "


def size(nbytes: float) -> str:
    """Bytes for people: 12.3 MB."""
    return f"{figure(nbytes)}B"
