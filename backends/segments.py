"""The scheduler's pass 4: a placed graph cut into graphs of one backend each, and the copies.

Views are repeated wherever they are read, so that only whole values are copied and every node sees
the layouts that its backend was asked about. A state is a state in the segments of its home and
comes as a copy elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..graph import Graph, Node, TensorSpec, Value, make_op
from ..graph.memory import storage_roots
from ..graph.verify import state_versions
from .placement import Placement, computes


@dataclass(frozen=True)
class Copy:
    """After segment `source` its output `name` goes to the input `name` of segment `target`."""

    name: str
    spec: TensorSpec
    source: int
    target: int


@dataclass(eq=False)
class Segment:
    """Consecutive nodes of one backend, and the graph made of them."""

    backend: int
    nodes: list[Node] = field(default_factory=list)
    graph: Graph = field(default_factory=Graph)


def split(placement: Placement) -> tuple[list[Segment], list[Copy]]:
    """The segments, to be run in order, and the copies between them."""
    segments = _runs(placement)
    cutter = _Cutter(placement, segments)
    return segments, cutter.run()


def unviewed(value: Value) -> Value:
    """What a chain of views looks at."""
    while value.node.op.view:
        source = value.node.inputs[0]
        assert source is not None, f"{value.node.describe()} is a view of nothing"
        value = source
    return value


def _sources(node: Node) -> Iterable[Value]:
    return (unviewed(v) for v in node.inputs if v is not None)


def _runs(placement: Placement) -> list[Segment]:
    """Consecutive nodes of one backend, in graph order. A state that another backend reads before
    the state's own has had a segment gets an empty segment there, which outputs it."""
    runs: list[Segment] = []

    def require(home: int, before: int) -> None:
        if not any(r.backend == home for r in runs[:before]):
            runs.insert(before, Segment(home))

    def require_states(values: Iterable[Value], backend: int | None, before: int) -> None:
        for value in values:
            if value.node.op.name == "state":
                home = placement.homes[value.node.name]
                if home != backend:
                    require(home, before)

    for node in filter(computes, placement.graph.nodes):
        backend = placement.nodes[node.id].backend
        if not runs or runs[-1].backend != backend:
            runs.append(Segment(backend))
        require_states(_sources(node), backend, len(runs) - 1)
        runs[-1].nodes.append(node)
    outputs = [unviewed(v) for v in placement.graph.outputs.values()]
    require_states(outputs, None, len(runs))
    return runs or [Segment(0)]


class _Cutter:
    """Builds all segments' graphs; values that one makes and another reads become copies."""

    def __init__(self, placement: Placement, segments: list[Segment]) -> None:
        self.placement, self.source, self.segments = placement, placement.graph, segments
        self.roots = storage_roots(self.source)
        self.states = state_versions(self.source)
        self.maker = {node.id: at for at, s in enumerate(segments) for node in s.nodes}
        self.parts = [_Part(self, at, segment) for at, segment in enumerate(segments)]
        self.copies: list[Copy] = []

    def run(self) -> list[Copy]:
        """Fill the segments' graphs; the copies between them."""
        for part in self.parts:
            part.build()
        for name, value in self.source.outputs.items():
            part = self.parts[self._where(unviewed(value), len(self.parts))]
            part.graph.output(name, part.local(value))
        for part in self.parts:
            if not part.graph.outputs:
                part.keep_last_write()
        return self.copies

    def arrive(self, value: Value, target: int) -> str:
        """Note a copy of a value to a segment; its name at both ends."""
        source = self._where(value, target)
        name = f"copy.{value.node.id}.{value.index}"
        while name in self.source.leaves or name in self.source.outputs:
            name = f"_{name}"
        giver = self.parts[source]
        if name not in giver.graph.outputs:
            giver.graph.output(name, giver.local(value))
        self.copies.append(Copy(name, value.spec, source, target))
        return name

    def home(self, value: Value) -> int | None:
        """The backend of the state that a value is a version of, None for other values."""
        if value not in self.states:
            return None
        return self.placement.homes[self.roots[value][0].node.name]

    def _where(self, value: Value, before: int) -> int:
        """A segment that has a value which is no view: its maker, or for a leaf any that may."""
        if not value.node.is_leaf:
            return self.maker[value.node.id]
        home = self.home(value)
        return next(at for at in range(before) if home is None or self.segments[at].backend == home)


class _Part:
    """One segment's graph; `moved` maps values of the whole graph to it."""

    def __init__(self, cutter: _Cutter, at: int, segment: Segment) -> None:
        self.cutter, self.at, self.segment = cutter, at, segment
        self.graph = segment.graph
        self.graph.name = f"{cutter.source.name}.{at}"
        self.moved: dict[Value, Value] = {}
        written = [v for n in segment.nodes for v in n.written().values()]
        self._overwritten = {cutter.roots[v][0] for v in written if v not in cutter.states}

    def build(self) -> None:
        """Add the segment's nodes with all that they read."""
        for node in self.segment.nodes:
            inputs = tuple(self.local(v) if v is not None else None for v in node.inputs)
            made = self.graph.adopt(node, inputs)
            self.moved.update((node.value(i), made.value(i)) for i in range(len(node.specs)))

    def local(self, value: Value) -> Value:
        """A value of the whole graph in this segment."""
        if value not in self.moved:
            self.moved[value] = self._fetch(value)
        return self.moved[value]

    def keep_last_write(self) -> None:
        """An output for a segment that only writes states: its last node's, which is one."""
        last = self.segment.nodes[-1]
        self.graph.output("written", self.local(last.value(next(iter(last.written())))))

    def _fetch(self, value: Value) -> Value:
        node = value.node
        if node.op.view:
            inputs = tuple(self.local(v) if v is not None else None for v in node.inputs)
            return self.graph.adopt(node, inputs).value()
        at_home = self.cutter.home(value) == self.segment.backend
        if node.op.name in ("input", "constant") or (node.is_leaf and at_home):
            if node.name in self.cutter.source.data:
                self.graph.data[node.name] = self.cutter.source.data[node.name]
            return self.graph.adopt(node, ()).value()
        if at_home:
            # What earlier segments wrote is what the state holds when this one starts.
            return self.local(node.written()[value.index])
        name = self.cutter.arrive(value, self.at)
        copy = self.graph.input(name, value.shape, value.dtype)
        if self.cutter.roots[value][0] in self._overwritten:
            # Inputs are never overwritten; a copy that a node made may be.
            return self.graph.apply(make_op("cont", {}), (copy,)).value()
        return copy
