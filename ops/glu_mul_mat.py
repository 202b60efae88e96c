"""Gated activation and the product of its result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..graph.builder import Graph
from ..graph.case import Case, f32, rand
from ..graph.fusion import Fusion, Uses, maker
from ..graph.node import Node, Value
from ..graph.op import Cost, Op, make_op, register
from ..graph.spec import TensorSpec
from .glu import Geglu, Swiglu
from .mul_mat import QUANTISED_PRODUCT, MulMat
from .mul_mats import (
    products,
    products_cost,
    require_rows,
    require_weights,
)
from .unary import sigmoid

ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "silu": Swiglu.activation,
    "gelu": Geglu.activation,
    "sigmoid": sigmoid,
}
_GLU = {"swiglu": "silu", "geglu": "gelu"}


def only_product(value: Value, uses: Uses) -> tuple[Node, ...]:
    """The nodes that alone read a value [N, ...] as rows of a product: a view that makes rows of
    it, where it has more axes, and the product. Empty where something else reads it."""
    covers: tuple[Node, ...] = ()
    if value.spec.rank > 2:
        flat = uses.only(value, "reshape")
        if flat is None or flat.specs[0].shape[0] != value.shape[0]:
            return ()
        covers, value = (flat,), flat.value()
    product = uses.only(value, "mul_mat") if value.spec.rank == 2 else None
    if product is None or product.inputs[0] != value:
        return ()
    return (*covers, product)


@register
class GluMulMat(Op):
    """y[n, m] = sum over k of (act(gate[n, k]) * up[n, k]) * w[m, k]

    gate, up: [N, ...] f32 of one shape, whose axes behind the first hold K elements together and
    may have gaps, but for the last; w: [M, K] of a type that mul_mat takes; act: "silu", "gelu" (by
    its tanh approximation) or "sigmoid"; y: [N, M] f32. Source: Shazeer 2020."""

    name, inputs, outputs = "glu_mul_mat", ("gate", "up", "w"), ("y",)
    constants = ("w",)
    rowwise = True
    fuses = ("swiglu", "geglu", "mul")
    tolerance = MulMat.tolerance
    block_tolerance = QUANTISED_PRODUCT
    act: str

    def infer(self, gate: TensorSpec, up: TensorSpec, w: TensorSpec) -> TensorSpec:
        require_rows(self, "gate", gate)
        require_rows(self, "up", up)
        self.require(up.shape == gate.shape, "up", f"{gate.shape}, the gate's shape", up.shape)
        self.require_attr(self.act in ACTIVATIONS, "act", "one of " + ", ".join(ACTIVATIONS))
        m = require_weights(self, "w", (w,), math.prod(gate.shape[1:]))
        return gate.like((gate.shape[0], m))

    def reference(self, gate: np.ndarray, up: np.ndarray, w: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            act = ACTIVATIONS[self.act](gate.astype(np.float64))
            if self.act == "sigmoid":
                act = act.astype(np.float32)
            h = (act * up).astype(np.float32)
        return products(h.reshape(len(h), w.shape[1]), (w,))

    def expand(self, graph: Graph, gate: Value, up: Value, w: Value) -> Value:
        if self.act == "sigmoid":
            h = graph.mul(up, graph.sigmoid(gate))
        else:
            h = (graph.swiglu if self.act == "silu" else graph.geglu)(gate, up)
        if h.spec.rank > 2:
            h = graph.reshape(h, shape=(h.shape[0], w.shape[1]))
        return graph.mul_mat(h, w)

    def cost(self, gate: TensorSpec, up: TensorSpec, w: TensorSpec) -> Cost:
        work = products_cost(gate.shape[0], (w,))
        return Cost(work.flops + 5 * gate.size, work.read + gate.nbytes + up.nbytes, work.write)

    @classmethod
    def fusions(cls, node: Node, uses: Uses) -> Iterable[Fusion]:
        """A gated activation that one product alone reads."""
        covers = only_product(node.value(), uses)
        if not covers:
            return
        w, results = covers[-1].inputs[1], {covers[-1].value(): (0, 0)}
        if act := _GLU.get(node.op.name):
            op = make_op(cls.name, {"act": act})
            yield Fusion(op, (*node.inputs, w), (node, *covers), results)
            return
        op = make_op(cls.name, {"act": "sigmoid"})
        for up, gate in (node.inputs, node.inputs[::-1]):
            gating = maker(gate, "sigmoid")
            if gating and up is not None and up.shape == gating.value().shape:
                yield Fusion(op, (gating.inputs[0], up, w), (gating, node, *covers), results)

    @staticmethod
    def cases() -> Iterable[Case]:
        acts, types = tuple(ACTIVATIONS), ("q4_k", "q8_0", "q6_k", "f16", "f32", "q5_k")
        for i, of in enumerate(types):
            for j, n in enumerate((1, 2, 3, 8, 17)):
                gate, w = f32(n, 512, lo=-8, hi=8), rand(of, (48, 17)[j % 2], 512)
                yield Case(gate=gate, up=f32(n, 512), w=w, act=acts[(i + j) % 3])
        gate = f32(3, 4, 64, lo=-8, hi=8, gap=64)
        yield Case("heads,n=3", gate=gate, up=f32(3, 4, 64), w=rand("q4_k", 33, 256), act="sigmoid")
        gate, up = f32(5, 256, lo=-8, hi=8, gap=256), f32(5, 256, gap=256)
        yield Case("halves,n=5", gate=gate, up=up, w=rand("q4_k", 33, 256), act="silu")
        yield Case(
            "empty,n=0", gate=f32(0, 256), up=f32(0, 256), w=rand("q4_k", 8, 256), act="silu"
        )
        for n in (1, 8):
            gate, w = f32(n, 17408, lo=-8, hi=8), rand("q4_k", 5120, 17408)
            yield Case(gate=gate, up=f32(n, 17408), w=w, act="silu", tags=("perf",))
