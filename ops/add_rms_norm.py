"""A sum and its RMS normalisation."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..graph.builder import Graph
from ..graph.case import Case, f32
from ..graph.fusion import Fusion, Uses, maker
from ..graph.node import Node, Value
from ..graph.op import Cost, Op, make_op, register
from ..graph.spec import TensorSpec
from .ragged import require_dense_rows
from .rms_norm import normalised


@register
class AddRmsNorm(Op):
    """sum = x + delta; y = rms_norm(sum) * weight

    x, delta: [N, K] f32, their rows may have gaps; weight: [K] f32; y, sum: [N, K] f32.
    Source: Zhang & Sennrich 2019."""

    name, inputs, outputs = "add_rms_norm", ("x", "delta", "weight"), ("y", "sum")
    constants = ("weight",)
    rowwise = True
    fuses = ("rms_norm",)
    eps: float

    def infer(
        self, x: TensorSpec, delta: TensorSpec, weight: TensorSpec
    ) -> tuple[TensorSpec, TensorSpec]:
        self.require(x.rank == 2, "x", "[N, K]", x.shape)
        self.require(delta.shape == x.shape, "delta", f"{x.shape}, x's shape", delta.shape)
        for name, spec in (("x", x), ("delta", delta), ("weight", weight)):
            self.require_dtype(name, spec, "f32")
            require_dense_rows(self, name, spec)
        self.require_attr(self.eps >= 0, "eps", "zero or positive")
        self.require(weight.shape == x.shape[1:], "weight", x.shape[1:], weight.shape)
        return x.like(), x.like()

    def reference(
        self, x: np.ndarray, delta: np.ndarray, weight: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        total = (x + delta).astype(np.float32)
        return normalised(total, weight, self.eps), total

    def expand(self, graph: Graph, x: Value, delta: Value, weight: Value) -> tuple[Value, Value]:
        total = graph.add(x, delta)
        return graph.rms_norm(total, weight, eps=self.eps), total

    def cost(self, x: TensorSpec, delta: TensorSpec, weight: TensorSpec) -> Cost:
        return Cost(5 * x.size, x.nbytes + delta.nbytes + weight.nbytes, 2 * x.nbytes)

    @classmethod
    def fusions(cls, node: Node, uses: Uses) -> Iterable[Fusion]:
        """The normalisation of a sum; others may read both."""
        add, weight = maker(node.inputs[0], "add"), node.inputs[1]
        if add is None or weight is None or node.specs[0].rank != 2:
            return
        a, b = (v for v in add.inputs if v is not None)
        if a.shape == b.shape:
            op = make_op(cls.name, node.op.attributes())
            results = {node.value(): (0, 0), add.value(): (1, 0)}
            yield Fusion(op, (a, b, weight), (add, node), results)

    @staticmethod
    def cases() -> Iterable[Case]:
        for n, k in ((1, 256), (4, 64), (7, 100), (1, 1), (3, 2048), (2, 1028), (2, 5120)):
            yield Case(x=f32(n, k), delta=f32(n, k), weight=f32(k), eps=1e-6)
        gap = f32(3, 96, gap=32)
        yield Case("gap,n=3", x=gap, delta=f32(3, 96, gap=8), weight=f32(96), eps=1e-6)
        tiny, large = f32(2, 64, lo=-1e-20, hi=1e-20), f32(2, 64, lo=-1e15, hi=1e15)
        yield Case("tiny,n=2", x=tiny, delta=tiny, weight=f32(64), eps=1e-6)
        yield Case("large,n=2", x=large, delta=large, weight=f32(64), eps=1e-6)
        yield Case("empty,n=0", x=f32(0, 64), delta=f32(0, 64), weight=f32(64), eps=1e-6)
        for n in (1, 512):
            yield Case(
                x=f32(n, 2048), delta=f32(n, 2048), weight=f32(2048), eps=1e-6, tags=("perf",)
            )
