"""Checksums of every value of a run, in a form that can be compared between backends."""

from __future__ import annotations

import sys
import zlib
from typing import Any

import numpy as np

from ..graph import Graph, TensorSpec, Value
from ..graph.codec import decode
from .base import Backend, BoundPlan, Pools
from .kept import BoundKeeping, KeepingPlan

HEAD = "id op name shape rms crc"


class ChecksumPlan(KeepingPlan):
    """Prints a line for each value after each run."""

    def __init__(self, graph: Graph, kind: str, backend: Backend) -> None:
        super().__init__(graph, kind, backend, self._print)
        self.runs = 0

    def bind(self, weights: Any, pools: Pools, **more: Any) -> BoundPlan:
        """The inner plan, bound; padding rows run too, for what is left in them differs."""
        return BoundChecksum(self, self.inner.bind(weights, pools, **more))

    def _print(self, bound: BoundKeeping, rows: int | None) -> None:
        self.runs += 1
        lines = [f"# {self.graph.name} {self.kind} run {self.runs}: {HEAD}"]
        for value, stored in bound.values().items():
            found = "- -" if stored is None else checksum(stored, value.spec)
            lines.append(f"{_label(value)} {found}")
        sys.stderr.write("\n".join(lines) + "\n")


class BoundChecksum(BoundKeeping):
    """Runs all rows."""

    def run(self, rows: int | None = None, **more: Any) -> None:
        """Run once."""
        super().run(None, **more)


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
