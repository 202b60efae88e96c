"""Which backend each node of a graph runs on, with the cause: the scheduler's passes 1 to 3."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..graph import Graph, Node, Value, make_op
from ..graph.errors import BackendError, Unsupported
from ..graph.memory import storage_roots
from ..graph.passes.expand import expand, expansion
from .base import Backend


@dataclass(frozen=True)
class Placed:
    """backend: index of a node's backend; cause: what decided it, in a word or two."""

    backend: int
    cause: str


@dataclass(frozen=True)
class Placement:
    """graph: the given one, with fused ops that nobody takes expanded; nodes: by node id, leaves
    and views left out, which are wherever they are read; homes: the backend of each state."""

    graph: Graph
    nodes: dict[int, Placed]
    homes: dict[str, int]


def computes(node: Node) -> bool:
    """Whether a node has work to do: leaves and views have none."""
    return not node.is_leaf and not node.op.view


def place(graph: Graph, backends: Sequence[Backend], lives_on: Mapping[str, int]) -> Placement:
    """Give every node a backend that takes it, earlier backends first.

    lives_on: where weights and states are, by name; where some are, other nodes follow these, and
    without any all go where they are taken.
    Raises Unsupported for a node that no backend takes, with each one's reason, and for a state
    whose writes no single backend takes; BackendError for a lives_on that cannot be."""
    for name, index in lives_on.items():
        if not 0 <= index < len(backends):
            raise BackendError(
                f"{name!r} should live on a backend from 0 to {len(backends) - 1}, got {index}"
            )
    whole, origins = _expanded(graph, backends)
    placer = _Placer(whole, backends, lives_on)
    placer.pin_states()
    placer.pin_weights(lives_on)
    if lives_on:
        placer.follow()
    placer.pin_weights(n.name for n in whole.nodes if n.op.name == "constant")
    placer.spread()
    placer.settle()
    for at, origin in origins.items():
        if at in placer.placed:
            was = placer.placed[at]
            placer.placed[at] = Placed(was.backend, f"{was.cause}, expanded from {origin}")
    return Placement(whole, placer.placed, placer.homes)


def refusals(node: Node, backends: Sequence[Backend]) -> str:
    """Every backend's reason for not taking a node."""
    return "; ".join(f"{b.name}: {b.supports(node).why}" for b in backends)


def _expanded(graph: Graph, backends: Sequence[Backend]) -> tuple[Graph, dict[int, str]]:
    """The graph without the fused ops that nobody takes; new node ids -> the op they came from."""

    def keep(node: Node) -> bool:
        return any(b.supports(node).ok for b in backends)

    made = expand(graph, keep)
    origins: dict[int, str] = {}
    if made is graph:
        return graph, origins
    at = 0
    for node in graph.nodes:
        # An expanded node's place is taken by a run of new ones, in the order of its expansion.
        if made.nodes[at].op is node.op:
            at += 1
            continue
        parts = expansion(node)
        assert parts is not None, f"{node.describe()} was replaced by nothing"
        inner = expand(parts, keep)
        count = sum(not n.is_leaf or n.name in inner.data for n in inner.nodes)
        origins.update((i, node.op.name) for i in range(at, at + count))
        at += count
    return made, origins


class _Placer:
    """The assignment in the making; a node is only ever given to a backend that takes it."""

    def __init__(
        self, graph: Graph, backends: Sequence[Backend], lives_on: Mapping[str, int]
    ) -> None:
        self.graph, self.backends, self.lives_on = graph, backends, lives_on
        self.nodes = [n for n in graph.nodes if computes(n)]
        self.placed: dict[int, Placed] = {}
        self.homes: dict[str, int] = {}
        self._roots = storage_roots(graph)
        self._answers: dict[tuple[int, int], bool] = {}

    def takes(self, node: Node, backend: int) -> bool:
        """Whether a backend supports a node, and a copy of what it overwrites if that is no state:
        made elsewhere, it arrives as an input, and inputs are not overwritten."""
        key = (node.id, backend)
        if key not in self._answers:
            roots = [self._roots[v][0] for v in node.written().values()]
            copies = [self._copy_of(root) for root in roots if root.node.op.name != "state"]
            every = all(self.backends[backend].supports(n).ok for n in (node, *copies))
            self._answers[key] = every
        return self._answers[key]

    def _copy_of(self, value: Value) -> Node:
        return Node(len(self.graph.nodes), make_op("cont", {}), (value,), (value.spec.like(),), "")

    def pin_states(self) -> None:
        """Pass 1, states: a state's home takes all its writes and, if any does, all its reads."""
        touching: dict[str, list[Node]] = {}
        writing: dict[str, list[Node]] = {}
        groups = _Groups()
        for node in self.nodes:
            for name in self._leaves(node.inputs, "state"):
                touching.setdefault(name, []).append(node)
            written = self._leaves(node.written().values(), "state")
            for name in written:
                writing.setdefault(name, []).append(node)
                groups.join(written[0], name)
        for leaf in (n for n in self.graph.nodes if n.op.name == "state"):
            groups.join(leaf.name, leaf.name)
        for names in groups.all():
            writers = [n for name in names for n in writing.get(name, ())]
            readers = [n for name in names for n in touching.get(name, ())]
            home = self._home(names, writers, readers)
            self.homes.update(dict.fromkeys(names, home))
            for node in readers:
                self._put(node, home, "state")

    def pin_weights(self, among: Iterable[str]) -> None:
        """Pass 1, weights: a node is where its largest weight of these is."""
        chosen = set(among)
        for node in self.nodes:
            names = [n for n in self._leaves(node.inputs, "constant") if n in chosen]
            if not names:
                continue
            known = [n for n in names if n in self.lives_on]
            where = [self.lives_on[n] for n in known] or range(len(self.backends))
            for backend in where:
                self._put(node, backend, "weights")

    def follow(self) -> None:
        """Pass 1, the rest: a node is placed with the latest of its placed sources, and one without
        any with the first of its placed readers. So one tensor, the residual stream, crosses a
        boundary between layers, and not each of the values that later layers add to it."""
        for node in self.nodes:
            placed = [s.id for s in self._sources(node) if s.id in self.placed]
            if placed:
                self._put(node, self.placed[max(placed)].backend, "layer")
        readers = self._readers()
        for node in reversed(self.nodes):
            placed = [r.id for r in readers.get(node.id, ()) if r.id in self.placed]
            if placed:
                self._put(node, self.placed[min(placed)].backend, "layer")

    def spread(self) -> None:
        """Pass 2: nodes join their neighbours; the first backend spreads first.

        Inputs of the graph count as nodes of the first backend."""
        readers = self._readers()
        for backend in range(len(self.backends)):
            before = -1
            while len(self.placed) > before:
                before = len(self.placed)
                for node in self.nodes:
                    if any(self._is_on(s, backend) for s in self._sources(node)):
                        self._put(node, backend, "neighbour")
                for node in reversed(self.nodes):
                    if any(self._is_on(r, backend) for r in readers.get(node.id, ())):
                        self._put(node, backend, "neighbour")

    def settle(self) -> None:
        """Pass 3: what is left goes to the first backend that takes it."""
        for node in self.nodes:
            if node.id in self.placed:
                continue
            able = [b for b in range(len(self.backends)) if self.takes(node, b)]
            if not able:
                raise Unsupported(
                    f"no backend takes {node.op.name} ({node.describe()}): "
                    f"{refusals(node, self.backends)}"
                )
            self._put(node, able[0], "only backend" if len(able) == 1 else "default")

    def _put(self, node: Node, backend: int, cause: str) -> None:
        if node.id not in self.placed and self.takes(node, backend):
            self.placed[node.id] = Placed(backend, cause)

    def _is_on(self, node: Node, backend: int) -> bool:
        if node.op.name == "input":
            return backend == 0
        placed = self.placed.get(node.id)
        return placed is not None and placed.backend == backend

    def _readers(self) -> dict[int, list[Node]]:
        """By node id, the nodes that it is a source of, in order."""
        readers: dict[int, list[Node]] = {}
        for node in self.nodes:
            for source in self._sources(node):
                readers.setdefault(source.id, []).append(node)
        return readers

    def _sources(self, node: Node) -> Iterator[Node]:
        """The nodes that made the memory or the newest version that a node reads, past views."""
        for value in node.inputs:
            while value is not None and value.node.op.view:
                value = value.node.inputs[0]
            if value is not None:
                yield value.node

    def _leaves(self, values: Iterable[Value | None], kind: str) -> list[str]:
        """Names of the leaves of a kind whose memory is among values, the largest first."""
        roots = {self._roots[v][0].node for v in values if v is not None}
        found = [n for n in roots if n.op.name == kind]
        return [n.name for n in sorted(found, key=lambda n: (-n.specs[0].nbytes, n.id))]

    def _home(self, names: list[str], writers: list[Node], readers: list[Node]) -> int:
        given = sorted({self.lives_on[n] for n in names if n in self.lives_on})
        if len(given) > 1:
            raise BackendError(f"states {', '.join(names)} are written together: one place for all")
        choices = given or list(range(len(self.backends)))
        for wanted in ([*writers, *readers], writers):
            for backend in choices:
                if all(self.takes(n, backend) for n in wanted):
                    return backend
        whys = []
        for backend in choices:
            node = next(n for n in writers if not self.takes(n, backend))
            why = self.backends[backend].supports(node).why
            whys.append(f"{self.backends[backend].name}: {node.op.name} ({node.describe()}): {why}")
        raise Unsupported(
            f"no backend takes every write of state {names[0]!r}, which lives on one: "
            + "; ".join(whys)
        )


class _Groups:
    """Names that belong together."""

    def __init__(self) -> None:
        self._of: dict[str, list[str]] = {}

    def join(self, a: str, b: str) -> None:
        """Put two names and all that goes with them into one group."""
        first, second = self._of.setdefault(a, [a]), self._of.setdefault(b, [b])
        if first is not second:
            first += second
            self._of.update(dict.fromkeys(second, first))

    def all(self) -> list[list[str]]:
        """The groups, in order of their first names."""
        return list({id(group): group for group in self._of.values()}.values())
