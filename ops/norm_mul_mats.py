"""RMS normalisation and the products of its result, with the residual sum before it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..graph.builder import Graph
from ..graph.case import Case, f32, rand
from ..graph.fusion import Fusion, Uses, maker
from ..graph.node import Node, Value
from ..graph.op import Cost, Op, register
from ..graph.spec import TensorSpec
from .mul_mat import QUANTISED_PRODUCT, MulMat
from .mul_mats import (
    MIXED,
    expanded_products,
    product_results,
    products,
    products_cost,
    products_of,
    require_rows,
    require_weights,
    weights,
)
from .rms_norm import RmsNorm


@register
class NormMulMats(Op):
    """sum = x + delta; y = the products of sum, normalised, with several weights, beside each other

    x: [N, K] f32, and delta like it, or absent: then x is what is normalised and there is no sum;
    their rows may have gaps; weight: [K] f32, of rms_norm; ws: one or more weights [M, K], each of
    a type that mul_mat takes. y: [N, sum of M] f32, as in mul_mats; sum: [N, K] f32."""

    name, inputs, outputs = "norm_mul_mats", ("x", "delta?", "weight", "*ws"), ("y", "sum?")
    constants = ("weight", "ws")
    rowwise = True
    fuses = ("rms_norm",)
    tolerance = MulMat.tolerance
    block_tolerance = QUANTISED_PRODUCT
    eps: float

    def infer(
        self, x: TensorSpec, delta: TensorSpec | None, weight: TensorSpec, *ws: TensorSpec
    ) -> TensorSpec | tuple[TensorSpec, TensorSpec]:
        require_rows(self, "x", x)
        self.require(x.rank == 2, "x", "[N, K]", x.shape)
        self.require_attr(self.eps >= 0, "eps", "zero or positive")
        self.require_dtype("weight", weight, "f32")
        self.require(weight.shape == x.shape[1:], "weight", x.shape[1:], weight.shape)
        y = x.like((x.shape[0], require_weights(self, "ws", ws, x.shape[1])))
        if delta is None:
            return y
        require_rows(self, "delta", delta)
        self.require(delta.shape == x.shape, "delta", f"{x.shape}, x's shape", delta.shape)
        return y, x.like()

    def reference(
        self, x: np.ndarray, delta: np.ndarray | None, weight: np.ndarray, *ws: np.ndarray
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        total = x if delta is None else (x + delta).astype(np.float32)
        y = products(RmsNorm(eps=self.eps).reference(total, weight), ws)
        return y if delta is None else (y, total)

    def expand(
        self, graph: Graph, x: Value, delta: Value | None, weight: Value, *ws: Value
    ) -> Value | tuple[Value, Value]:
        total = x if delta is None else graph.add(x, delta)
        y = expanded_products(graph, graph.rms_norm(total, weight, eps=self.eps), ws)
        return y if delta is None else (y, total)

    def cost(
        self, x: TensorSpec, delta: TensorSpec | None, weight: TensorSpec, *ws: TensorSpec
    ) -> Cost:
        work, more = products_cost(x.shape[0], ws), x.nbytes if delta else 0
        read = work.read + x.nbytes + more + weight.nbytes
        return Cost(work.flops + 5 * x.size, read, work.write + more)

    @classmethod
    def fusions(cls, node: Node, uses: Uses) -> Iterable[Fusion]:
        """A normalisation that products alone read, with the sum that it normalises and without."""
        x, weight = node.inputs
        nodes = products_of(node.value(), uses)
        if x is None or weight is None or not nodes:
            return
        op, ws = cls(eps=node.op.attributes()["eps"]), [n.inputs[1] for n in nodes]
        results = product_results(nodes)
        yield Fusion(op, (x, None, weight, *ws), (node, *nodes), results)
        if add := maker(x, "add"):
            a, b = add.inputs
            if a is not None and b is not None and a.shape == b.shape:
                covers = (add, node, *nodes)
                yield Fusion(op, (a, b, weight, *ws), covers, results | {x: (1, 0)})

    @staticmethod
    def cases() -> Iterable[Case]:
        for i, types in enumerate(MIXED):
            for n in ((1, 5), (2, 17), (8, 33))[i % 3]:
                delta = f32(n, 512) if n % 2 else None
                yield Case(
                    x=f32(n, 512), delta=delta, weight=f32(512), ws=weights(types, 512), eps=1e-6
                )
        few = weights(MIXED[0], 256)
        yield Case(x=f32(3, 256), weight=f32(256), ws=(rand("q4_k", 17, 256),), eps=1e-5)
        yield Case(
            "gap,n=3",
            x=f32(3, 256, gap=32),
            delta=f32(3, 256, gap=8),
            weight=f32(256),
            ws=few,
            eps=1e-6,
        )
        yield Case("empty,n=0", x=f32(0, 256), delta=f32(0, 256), weight=f32(256), ws=few, eps=1e-6)
        large = f32(2, 256, lo=-1e15, hi=1e15)
        yield Case("large,n=2", x=large, weight=f32(256), ws=few, eps=1e-6)
        tiny = f32(2, 256, lo=-1e-20, hi=1e-20)
        yield Case("tiny,n=2", x=tiny, delta=tiny, weight=f32(256), ws=few, eps=1e-6)
        for n in (1, 8):
            ws = (rand("q4_k", 10240, 5120), rand("q4_k", 6144, 5120))
            x = f32(n, 5120)
            yield Case(x=x, delta=x, weight=f32(5120), ws=ws, eps=1e-6, tags=("perf",))
