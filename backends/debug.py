"""What RIVERRUN_DEBUG shows on standard error: docs/debugging.md.

1 devices and plans, 2 times of ops and nodes, 3 placement with causes, 4 checksums of nodes."""

from __future__ import annotations

import atexit
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..graph import Graph, HostTensor, Node
from ..graph.debug import level, note
from .base import Backend, BoundPlan, Plan, Pools, Support, Weights
from .checksums import ChecksumPlan
from .delegate import Delegate
from .native import NativePlan
from .placement import computes
from .scheduler import SplitPlan

PLANS, TIMES, PLACEMENT, CHECKSUMS = 1, 2, 3, 4
SLOWEST = 10


def watched(backend: Backend) -> Backend:
    """The backend, or at a level above 0 one that does the same and says what it does."""
    wanted = level()
    if not wanted or isinstance(backend, WatchedBackend):
        return backend
    return WatchedBackend(backend, wanted)


def unwatched(backend: Backend) -> Backend:
    """What a watched backend watches, and any other itself."""
    return backend.inner if isinstance(backend, WatchedBackend) else backend


class WatchedBackend(Delegate, Backend):
    """Another backend, with its plans watched."""

    def __init__(self, inner: Backend, wanted: int) -> None:
        self.inner, self.wanted = inner, wanted
        threads = f", threads {inner.threads}" if inner.threads else ""
        note([f"device {inner.name}{threads}"])

    def supports(self, node: Node) -> Support:
        """What the watched backend says."""
        return self.inner.supports(node)

    def load_weights(
        self, weights: Mapping[str, HostTensor], progress: Callable[[int], None] | None = None
    ) -> Weights:
        """The watched backend's weights."""
        return self.inner.load_weights(weights, progress)

    def compile(self, graph: Graph, kind: str = "step") -> Plan:
        """The watched backend's plan, described, and observed when it runs."""
        if self.wanted >= CHECKSUMS:
            checked = ChecksumPlan(graph, kind, self.inner)
            self._describe(checked.inner)
            return checked
        plan = self.inner.compile(graph, kind)
        self._describe(plan)
        return TimedPlan(plan, self.name) if self.wanted >= TIMES else plan

    def _describe(self, plan: Plan) -> None:
        note(summary(plan, self.name))
        if self.wanted >= PLACEMENT and isinstance(plan, SplitPlan):
            note(plan.placement_lines())


def summary(plan: Plan, device: str) -> list[str]:
    """A plan in a few lines: nodes, memory, kernels per op."""
    weights = sum(s.nbytes for s in plan.constants.values())
    states = sum(s.nbytes for s in plan.states.values())
    lines = [
        f"plan {plan.graph.name!r} {plan.kind} on {device}: {len(run_nodes(plan))} nodes, "
        f"arena {plan.memory.arena_bytes} bytes (peak {plan.memory.peak_bytes}), "
        f"weights {weights} bytes, states {states} bytes"
    ]
    if isinstance(plan, SplitPlan):
        copied = sum(c.spec.nbytes for c in plan.copies)
        lines[0] += (
            f"; {len(plan.segments)} segments, {len(plan.copies)} copies of {copied} bytes a run"
        )
    kernels = Counter(op for part in _parts(plan) for op in _kernels(part))
    counts = ", ".join(f"{op} {n}" for op, n in sorted(kernels.items()))
    return [*lines, f"  {counts}"]


def run_nodes(plan: Plan) -> list[Node]:
    """The nodes that a run computes, in order: those that `profile` gives times of."""
    return [n for part in _parts(plan) for n in part.graph.nodes if computes(n)]


def _parts(plan: Plan) -> list[Plan]:
    return plan.plans if isinstance(plan, SplitPlan) else [plan]


def _kernels(plan: Plan) -> list[str]:
    """What computes each node: the op, and the instruction set or variant of its kernel."""
    if isinstance(plan, NativePlan):
        return [f"{choice.kernel.op}/{choice.kernel.isa}" for choice in plan.choices]
    return [n.op.name for n in plan.graph.nodes if computes(n)]


class TimedPlan(Delegate, Plan):
    """A plan whose runs are timed node by node; the report comes when the program ends."""

    def __init__(self, inner: Plan, device: str) -> None:
        super().__init__(inner.graph, inner.kind)
        self.inner = inner
        self.times = Times(f"{inner.graph.name!r} {inner.kind} on {device}", run_nodes(inner))
        if not _reports:
            atexit.register(report)
        _reports.append(self.times)

    def bind(self, weights: Any, pools: Pools, **more: Any) -> BoundPlan:
        """The inner plan, bound; more: what its backend takes besides."""
        return BoundTimed(self.inner.bind(weights, pools, **more), self.times)

    def own_weights(self) -> Any:
        """The inner plan's."""
        return self.inner.own_weights()


class BoundTimed(Delegate, BoundPlan):
    """Runs the inner plan and adds up its times. Runs on a stream of the caller's are not timed."""

    def __init__(self, inner: BoundPlan, times: Times) -> None:
        self.inner, self.times = inner, times

    def run(self, rows: int | None = None, **more: Any) -> None:
        """Run once, timed; more: what its backend takes besides."""
        if more:
            self.inner.run(rows, **more)
        else:
            self.profile(rows)

    def start(self, **more: Any) -> None:
        """A run that is over, and timed, when this returns."""
        if more:
            self.inner.start(**more)
        else:
            self.profile()

    def profile(self, rows: int | None = None) -> list[tuple[str, int]]:
        """Run once; the inner plan's times."""
        found: list[tuple[str, int]] = self.inner.profile(rows)
        self.times.add([ns for _, ns in found])
        return found


@dataclass
class Times:
    """Nanoseconds of a plan's nodes over all runs; none where the backend does not time them."""

    title: str
    nodes: list[Node]
    runs: int = 0
    total: list[int] = field(default_factory=list)

    def add(self, times: list[int]) -> None:
        """One more run."""
        self.runs += 1
        if times:
            before = self.total or [0] * len(times)
            self.total = [a + b for a, b in zip(before, times, strict=True)]

    def lines(self) -> list[str]:
        """A row an op, the slowest first, and then the slowest nodes."""
        if not self.runs:
            return []
        if not self.total:
            return [f"times of {self.title}: {self.runs} runs, nodes not timed"]
        ms = sum(self.total) / 1e6
        by_op: dict[str, list[int]] = {}
        for at, node in enumerate(self.nodes):
            by_op.setdefault(node.op.name, []).append(at)
        slowest = sorted(range(len(self.nodes)), key=lambda at: -self.total[at])[:SLOWEST]
        rows = sorted(
            (self._row(f"{op} x{len(ats)}", ats) for op, ats in by_op.items()), reverse=True
        )
        rows += [self._row(self._label(at), [at]) for at in slowest]
        head = f"{'':40} {'ms/run':>9} {'share':>6} {'GB/s':>8} {'GFLOP/s':>8}"
        title = f"times of {self.title}: {self.runs} runs, {ms / self.runs:.3f} ms/run"
        return [title, head, *(text for _, text in rows)]

    def _label(self, at: int) -> str:
        node = self.nodes[at]
        return f"  {node.id} {node.op.name} {node.name}".rstrip()

    def _row(self, label: str, ats: list[int]) -> tuple[int, str]:
        """Time and a table row of some nodes; bytes and operations as the ops count them."""
        ns = sum(self.total[at] for at in ats)
        costs = [self.nodes[at].op.cost(*self.nodes[at].input_specs()) for at in ats]
        moved = self.runs * sum(c.read + c.write for c in costs)
        flops = self.runs * sum(c.flops for c in costs)
        share = 100 * ns / max(1, sum(self.total))
        numbers = f"{ns / 1e6 / self.runs:9.4f} {share:5.1f}%"
        return ns, f"{label:40} {numbers} {moved / max(1, ns):8.2f} {flops / max(1, ns):8.2f}"


_reports: list[Times] = []


def report() -> None:
    """Print the times of all plans that ran, and start anew."""
    for times in _reports:
        note(times.lines())
    _reports.clear()
