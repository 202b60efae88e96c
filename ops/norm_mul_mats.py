"""RMS normalisation and the products of its result, with the sum before it or without."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..graph.builder import Graph
from ..graph.case import Case, f32, fixed, rand
from ..graph.fusion import Fusion, Uses, maker
from ..graph.node import Node, Value
from ..graph.op import Cost, Op, make_op, register
from ..graph.spec import TensorSpec
from .mul_mat import QUANTISED_PRODUCT, MulMat, rows_with_nan
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
from .rms_norm import normalised


class _NormProducts(Op):
    """What the ops of this file share."""

    constants = ("weight", "ws")
    rowwise = True
    fuses = ("rms_norm",)
    tolerance = MulMat.tolerance
    block_tolerance = QUANTISED_PRODUCT
    eps: float

    def require_operands(
        self, x: TensorSpec, weight: TensorSpec, ws: Sequence[TensorSpec]
    ) -> TensorSpec:
        """Check all inputs but delta; returns y."""
        require_rows(self, "x", x)
        self.require(x.rank == 2, "x", "[N, K]", x.shape)
        self.require_attr(self.eps >= 0, "eps", "zero or positive")
        self.require_dtype("weight", weight, "f32")
        self.require(weight.shape == x.shape[1:], "weight", x.shape[1:], weight.shape)
        return x.like((x.shape[0], require_weights(self, "ws", ws, x.shape[1])))


def _found(node: Node, uses: Uses) -> tuple[list[Node], list[Value | None]]:
    """The products that alone read a normalisation, and their weights; none where others do."""
    nodes = products_of(node.value(), uses) if node.inputs[1] is not None else []
    if len(nodes) < len(uses.of(node.value())):
        return [], []
    return nodes, [n.inputs[1] for n in nodes]


@register
class NormMulMats(_NormProducts):
    """y = the products of rms_norm(x) * weight with several weights, beside each other

    x: [N, K] f32, its rows may have gaps; weight: [K] f32, of the norm; ws: one or more weights
    [M, K], each of a type that mul_mat takes; y: [N, sum of M] f32, as in mul_mats."""

    name, inputs, outputs = "norm_mul_mats", ("x", "weight", "*ws"), ("y",)
    eps: float

    def infer(self, x: TensorSpec, weight: TensorSpec, *ws: TensorSpec) -> TensorSpec:
        return self.require_operands(x, weight, ws)

    def reference(self, x: np.ndarray, weight: np.ndarray, *ws: np.ndarray) -> np.ndarray:
        return products(normalised(x, weight, self.eps), ws)

    def expand(self, graph: Graph, x: Value, weight: Value, *ws: Value) -> Value:
        return expanded_products(graph, graph.rms_norm(x, weight, eps=self.eps), ws)

    def cost(self, x: TensorSpec, weight: TensorSpec, *ws: TensorSpec) -> Cost:
        work = products_cost(x.shape[0], ws)
        return Cost(work.flops + 4 * x.size, work.read + x.nbytes + weight.nbytes, work.write)

    @classmethod
    def fusions(cls, node: Node, uses: Uses) -> Iterable[Fusion]:
        """A normalisation that products alone read."""
        nodes, ws = _found(node, uses)
        if nodes:
            op = make_op(cls.name, node.op.attributes())
            yield Fusion(op, (*node.inputs, *ws), (node, *nodes), product_results(nodes))

    @staticmethod
    def cases() -> Iterable[Case]:
        for i, types in enumerate(MIXED):
            for n in ((1, 5), (2, 17), (8, 33))[i % 3]:
                yield Case(x=f32(n, 512), weight=f32(512), ws=weights(types, 512), eps=1e-6)
        few = weights(MIXED[0], 256)
        yield Case(x=f32(3, 256), weight=f32(256), ws=(rand("q4_k", 17, 256),), eps=1e-5)
        yield Case("gap,n=3", x=f32(3, 256, gap=32), weight=f32(256), ws=few, eps=1e-6)
        yield Case("empty,n=0", x=f32(0, 256), weight=f32(256), ws=few, eps=1e-6)
        large = f32(2, 256, lo=-1e15, hi=1e15)
        yield Case("large,n=2", x=large, weight=f32(256), ws=few, eps=1e-6)
        tiny = f32(2, 256, lo=-1e-20, hi=1e-20)
        yield Case("tiny,n=2", x=tiny, weight=f32(256), ws=few, eps=1e-6)
        nan = fixed(rows_with_nan(3, 512))
        yield Case("nan", x=nan, weight=f32(512), ws=weights(MIXED[1], 512), eps=1e-6)
        head = (rand("q6_k", 32768, 1024),)
        yield Case("head", x=f32(1, 1024), weight=f32(1024), ws=head, eps=1e-6, tags=("perf",))


@register
class AddNormMulMats(_NormProducts):
    """sum = x + delta; y = the products of rms_norm(sum) * weight with several weights

    x, delta: [N, K] f32, their rows may have gaps; weight: [K] f32, of the norm; ws: one or more
    weights [M, K], each of a type that mul_mat takes; y: [N, sum of M] f32, beside each other as in
    mul_mats; sum: [N, K] f32."""

    name, inputs = "add_norm_mul_mats", ("x", "delta", "weight", "*ws")
    outputs = ("y", "sum")
    eps: float

    def infer(
        self, x: TensorSpec, delta: TensorSpec, weight: TensorSpec, *ws: TensorSpec
    ) -> tuple[TensorSpec, TensorSpec]:
        y = self.require_operands(x, weight, ws)
        require_rows(self, "delta", delta)
        self.require(delta.shape == x.shape, "delta", f"{x.shape}, x's shape", delta.shape)
        return y, x.like()

    def reference(
        self, x: np.ndarray, delta: np.ndarray, weight: np.ndarray, *ws: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        total = (x + delta).astype(np.float32)
        return products(normalised(total, weight, self.eps), ws), total

    def expand(
        self, graph: Graph, x: Value, delta: Value, weight: Value, *ws: Value
    ) -> tuple[Value, Value]:
        total = graph.add(x, delta)
        return expanded_products(graph, graph.rms_norm(total, weight, eps=self.eps), ws), total

    def cost(self, x: TensorSpec, delta: TensorSpec, weight: TensorSpec, *ws: TensorSpec) -> Cost:
        work = products_cost(x.shape[0], ws)
        read = work.read + x.nbytes + delta.nbytes + weight.nbytes
        return Cost(work.flops + 5 * x.size, read, work.write + x.nbytes)

    @classmethod
    def fusions(cls, node: Node, uses: Uses) -> Iterable[Fusion]:
        """The normalisation of a sum that products alone read; others may read the sum."""
        nodes, ws = _found(node, uses)
        add = maker(node.inputs[0], "add")
        if not nodes or add is None:
            return
        a, b = (v for v in add.inputs if v is not None)
        if a.shape == b.shape:
            op = make_op(cls.name, node.op.attributes())
            results = product_results(nodes) | {add.value(): (1, 0)}
            yield Fusion(op, (a, b, node.inputs[1], *ws), (add, node, *nodes), results)

    @staticmethod
    def cases() -> Iterable[Case]:
        for i, types in enumerate(MIXED):
            for n in ((1, 5), (2, 17), (8, 33))[i % 3]:
                x, ws = f32(n, 512), weights(types, 512)
                yield Case(x=x, delta=f32(n, 512), weight=f32(512), ws=ws, eps=1e-6)
        few, x, w = weights(MIXED[0], 256), f32(3, 256, gap=32), f32(256)
        yield Case("gap,n=3", x=x, delta=f32(3, 256, gap=8), weight=w, ws=few, eps=1e-6)
        empty = f32(0, 256)
        yield Case("empty,n=0", x=empty, delta=empty, weight=w, ws=few, eps=1e-6)
        nan = fixed(rows_with_nan(3, 256))
        yield Case("nan", x=f32(3, 256), delta=nan, weight=w, ws=few, eps=1e-6)
        for n in (1, 8):
            ws = (rand("q4_k", 10240, 5120), rand("q4_k", 6144, 5120))
            x = f32(n, 5120)
            yield Case(x=x, delta=x, weight=f32(5120), ws=ws, eps=1e-6, tags=("perf",))
