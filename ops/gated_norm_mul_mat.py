"""The normalised and gated result of heads, and its product."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from ..graph.builder import Graph
from ..graph.case import Case, f32, rand
from ..graph.fusion import Fusion, Uses, maker
from ..graph.node import Node, Value
from ..graph.op import Cost, Op, make_op, register
from ..graph.spec import TensorSpec
from .glu import Swiglu
from .glu_mul_mat import only_product
from .mul_mat import QUANTISED_PRODUCT, MulMat
from .mul_mats import products, products_cost, require_rows, require_weights
from .rms_norm import normalised


@register
class GatedNormMulMat(Op):
    """y[n, m] = sum over k of (silu(gate) * rms_norm(x) * weight)[n, k] * w[m, k]

    x: [N, H, D] f32, normalised over D; weight: [D] f32; gate: like x; their leading axes may have
    gaps; w: [M, H*D] of a type that mul_mat takes; y: [N, M] f32. Source: Yang, Kautz & Hatamizadeh
    2024."""

    name, inputs, outputs = "gated_norm_mul_mat", ("x", "weight", "gate", "w"), ("y",)
    constants = ("weight", "w")
    rowwise = True
    fuses = ("swiglu",)
    tolerance = MulMat.tolerance
    block_tolerance = QUANTISED_PRODUCT
    eps: float

    def infer(
        self, x: TensorSpec, weight: TensorSpec, gate: TensorSpec, w: TensorSpec
    ) -> TensorSpec:
        require_rows(self, "x", x)
        require_rows(self, "gate", gate)
        self.require(x.rank == 3, "x", "[N, H, D]", x.shape)
        self.require(gate.shape == x.shape, "gate", f"{x.shape}, x's shape", gate.shape)
        self.require_attr(self.eps >= 0, "eps", "zero or positive")
        self.require_dtype("weight", weight, "f32")
        self.require(weight.shape == x.shape[2:], "weight", x.shape[2:], weight.shape)
        m = require_weights(self, "w", (w,), math.prod(x.shape[1:]))
        return x.like((x.shape[0], m))

    def reference(
        self, x: np.ndarray, weight: np.ndarray, gate: np.ndarray, w: np.ndarray
    ) -> np.ndarray:
        h = Swiglu().reference(gate, normalised(x, weight, self.eps))
        return products(h.reshape(len(h), w.shape[1]), (w,))

    def expand(self, graph: Graph, x: Value, weight: Value, gate: Value, w: Value) -> Value:
        h = graph.swiglu(gate, graph.rms_norm(x, weight, eps=self.eps))
        return graph.mul_mat(graph.reshape(h, shape=(h.shape[0], w.shape[1])), w)

    def cost(self, x: TensorSpec, weight: TensorSpec, gate: TensorSpec, w: TensorSpec) -> Cost:
        work = products_cost(x.shape[0], (w,))
        read = work.read + x.nbytes + gate.nbytes + weight.nbytes
        return Cost(work.flops + 9 * x.size, read, work.write)

    @classmethod
    def fusions(cls, node: Node, uses: Uses) -> Iterable[Fusion]:
        """A gated normalisation of heads that one product alone reads."""
        gate, up = node.inputs
        norm, covers = maker(up, "rms_norm"), only_product(node.value(), uses)
        if norm is None or norm.inputs[1] is None or not covers:
            return
        op, w = make_op(cls.name, norm.op.attributes()), covers[-1].inputs[1]
        results = {covers[-1].value(): (0, 0)}
        yield Fusion(op, (*norm.inputs, gate, w), (norm, node, *covers), results)

    @staticmethod
    def cases() -> Iterable[Case]:
        for i, of in enumerate(("q4_k", "q8_0", "q6_k", "f16", "f32")):
            for n in ((1, 5), (2, 17), (3, 8))[i % 3]:
                x, w = f32(n, 4, 128), rand(of, (48, 17)[i % 2], 512)
                gate = f32(n, 4, 128, lo=-8, hi=8)
                yield Case(x=x, weight=f32(128), gate=gate, w=w, eps=1e-6)
        few, weight = rand("q4_k", 17, 256), f32(64)
        gate = f32(3, 4, 64, lo=-8, hi=8, gap=8)
        yield Case("gap,n=3", x=f32(3, 4, 64, gap=8), weight=weight, gate=gate, w=few, eps=1e-6)
        empty = f32(0, 4, 64)
        yield Case("empty,n=0", x=empty, weight=weight, gate=empty, w=few, eps=1e-6)
        for n in (1, 8):
            x, gate = f32(n, 48, 128), f32(n, 48, 128, lo=-8, hi=8)
            w = rand("q4_k", 5120, 6144)
            yield Case(x=x, weight=f32(128), gate=gate, w=w, eps=1e-6, tags=("perf",))
