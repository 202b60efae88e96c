"""Checksums of every value of a run, in a form that can be compared between backends."""

from __future__ import annotations

import sys
import zlib
from typing import Any

import numpy as np

from ..graph import Graph, TensorSpec, Value, verify
from ..graph.codec import decode
from ..graph.verify import memory_versions
from .base import Backend, BoundPlan, Plan, Pools, prepare

HEAD = "id op name shape rms crc"


class ChecksumPlan(Plan):
    """A plan of the same graph in which every value is kept, so that each can be looked at.

    Nodes are numbered as in the graph before any backend expands or splits it, so that the same
    graph gives the same lines everywhere. `inner` is the backend's plan."""

    def __init__(self, graph: Graph, kind: str, backend: Backend) -> None:
        live = prepare(graph, kind)
        self.wanted = list(live.outputs)
        self.named = _keep_all(live)
        verify(live)
        self.inner = backend.compile(live, kind)
        super().__init__(live, kind)
        self.memory = self.inner.memory
        self.runs = 0

    def bind(self, weights: Any, pools: Pools) -> BoundPlan:
        """The inner plan, bound."""
        return BoundChecksum(self, self.inner.bind(weights, pools))

    def own_weights(self) -> Any:
        """The inner plan's."""
        return self.inner.own_weights()


class BoundChecksum(BoundPlan):
    """Runs the inner plan and prints a line for each value."""

    def __init__(self, plan: ChecksumPlan, inner: BoundPlan) -> None:
        self.plan, self.inner = plan, inner
        self.inputs = inner.inputs
        self.outputs = self._wanted()

    def run(self, rows: int | None = None) -> None:
        """Run once; padding rows are computed too, for what is left in them differs."""
        self.inner.run()
        self.outputs = self._wanted()
        self.plan.runs += 1
        graph = self.plan.graph
        lines = [f"# {graph.name} {self.plan.kind} run {self.plan.runs}: {HEAD}"]
        for value, name in self.plan.named.items():
            lines.append(f"{_label(value)} {self._check(value.spec, name)}")
        sys.stderr.write("\n".join(lines) + "\n")

    def _check(self, spec: TensorSpec, name: str | None) -> str:
        return checksum(self.inner.outputs[name], spec) if name else "- -"

    def _wanted(self) -> dict[str, np.ndarray]:
        found = self.inner.outputs
        return {name: found[name] for name in self.plan.wanted if name in found}


def checksum(stored: np.ndarray, spec: TensorSpec) -> str:
    """Root mean square of a tensor's values and CRC-32 of its bytes: "1.250000e+00 0a1b2c3d"."""
    raw = np.ascontiguousarray(stored)
    values = decode(spec.dtype, raw, spec.shape).astype(np.float64)
    rms = float(np.sqrt(np.mean(values * values))) if values.size else 0.0
    return f"{rms:.6e} {zlib.crc32(raw.tobytes()):08x}"


def _label(value: Value) -> str:
    node = value.node
    number = f"{node.id}.{value.index}" if len(node.specs) > 1 else str(node.id)
    name = "_".join(node.name.split()) or "-"
    return f"{number} {node.op.name} {name} {value.spec}"


def _keep_all(graph: Graph) -> dict[Value, str | None]:
    """Make every input and every computed value an output; its name, None for what is overwritten
    before the run ends. Views show what other values hold."""
    version = memory_versions(graph)
    written = {version[old] for n in graph.nodes for old in n.written().values() if old in version}
    named: dict[Value, str | None] = {}
    for node in graph.nodes:
        if node.op.view or node.op.name in ("constant", "state"):
            continue
        for index in range(len(node.specs)):
            value = node.value(index)
            name = f"value.{node.id}.{index}"
            while name in graph.outputs:
                name = f"_{name}"
            lost = version.get(value) in written
            named[value] = None if lost else name
            if not lost:
                graph.output(name, value)
    return named
