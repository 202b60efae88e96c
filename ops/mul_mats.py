"""Products of the same activations with several weights, and what fused products share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from ..graph.builder import Graph
from ..graph.case import Case, Declared, f32, fixed, rand
from ..graph.fusion import Fusion, Uses
from ..graph.node import Node, Value
from ..graph.op import Cost, Op, register
from ..graph.spec import TensorSpec
from .mul_mat import QUANTISED_PRODUCT, WEIGHT_TYPES, MulMat, rows_with_nan
from .ragged import require_contiguous, require_dense_rows


def require_rows(op: Op, arg: str, x: TensorSpec) -> None:
    """Check activations [N, ...] f32: rows without gaps inside, which may lie apart."""
    op.require(x.rank >= 2, arg, "[N, ...]", x.shape)
    op.require_dtype(arg, x, "f32")
    require_dense_rows(op, arg, x)


def require_weights(op: Op, arg: str, ws: Sequence[TensorSpec], k: int) -> int:
    """Check weights [M, k] of products; returns the sum of their M."""
    op.require(len(ws) > 0, arg, "one weight or more", "none")
    for i, w in enumerate(ws):
        each = f"{arg}[{i}]" if len(ws) > 1 else arg
        op.require(w.rank == 2 and w.shape[1] == k, each, f"[M, {k}]", w.shape)
        op.require_dtype(each, w, *WEIGHT_TYPES)
        require_contiguous(op, each, w)
    return sum(w.shape[0] for w in ws)


def products(x: np.ndarray, ws: Sequence[np.ndarray]) -> np.ndarray:
    """Reference of products beside each other. x: [N, K] f32."""
    return np.concatenate([MulMat().reference(x, w) for w in ws], -1)


def expanded_products(graph: Graph, x: Value, ws: Sequence[Value]) -> Value:
    """Nodes of products beside each other."""
    ys = [graph.mul_mat(x, w) for w in ws]
    return graph.concat(*ys, axis=1) if len(ys) > 1 else ys[0]


def products_cost(n: int, ws: Sequence[TensorSpec]) -> Cost:
    """Work of products with n rows, without reading the activations."""
    rows = sum(w.shape[0] for w in ws)
    return Cost(2 * n * sum(w.size for w in ws), sum(w.nbytes for w in ws), 4 * n * rows)


def product_results(nodes: Sequence[Node]) -> dict[Value, tuple[int, int]]:
    """Where output 0 of a fused node holds the results of products beside each other."""
    starts = accumulate((n.specs[0].shape[1] for n in nodes), initial=0)
    return {n.value(): (0, start) for n, start in zip(nodes, starts, strict=False)}


def products_of(x: Value, uses: Uses) -> list[Node]:
    """The nodes that multiply x, [N, K], with weights."""
    if x.spec.rank != 2:
        return []
    return [n for n in uses.of(x) if n.op.name == "mul_mat" and n.inputs[0] == x]


# As models mix them: types of blocks of 256 and of 32 beside each other, halves and floats.
MIXED = (
    ("q4_k", "q6_k"),
    ("q4_k", "q4_k", "q4_k"),
    ("q8_0", "q8_0", "f32", "f32"),
    ("q5_k", "q4_k", "q8_0", "f16"),
    ("f16", "bf16"),
    ("f32", "f32"),
)


def weights(
    types: Iterable[str], k: int, rows: Sequence[int] = (48, 16, 33, 1)
) -> tuple[Declared, ...]:
    """Weights of these types, of so many rows each."""
    return tuple(rand(of, m, k) for of, m in zip(types, rows, strict=False))


@register
class MulMats(Op):
    """y = x's products with several weights, beside each other

    y[n, start of w + m] = sum over k of x[n, k] * w[m, k], each weight beginning where the one
    before it ends. x: [N, K] f32, its rows may have gaps; ws: one or more weights [M, K], each of a
    type that mul_mat takes; y: [N, sum of M] f32."""

    name, inputs, outputs = "mul_mats", ("x", "*ws"), ("y",)
    constants = ("ws",)
    rowwise = True
    fuses = ("mul_mat",)
    tolerance = MulMat.tolerance
    block_tolerance = QUANTISED_PRODUCT

    def infer(self, x: TensorSpec, *ws: TensorSpec) -> TensorSpec:
        require_rows(self, "x", x)
        self.require(x.rank == 2, "x", "[N, K]", x.shape)
        return x.like((x.shape[0], require_weights(self, "ws", ws, x.shape[1])))

    def reference(self, x: np.ndarray, *ws: np.ndarray) -> np.ndarray:
        return products(x, ws)

    def expand(self, graph: Graph, x: Value, *ws: Value) -> Value:
        return expanded_products(graph, x, ws)

    def cost(self, x: TensorSpec, *ws: TensorSpec) -> Cost:
        work = products_cost(x.shape[0], ws)
        return Cost(work.flops, work.read + x.nbytes, work.write)

    @classmethod
    def fusions(cls, node: Node, uses: Uses) -> Iterable[Fusion]:
        """All products of what a node multiplies, at the first of them; and those whose weights are
        of block types, since kernels may take these only."""
        x = node.inputs[0]
        every = products_of(x, uses) if x is not None else []
        if not every or every[0] is not node:
            return
        blocks = [n for n in every if n.inputs[1] is not None and n.inputs[1].dtype.quantized]
        for nodes in [every, blocks] if len(blocks) < len(every) else [every]:
            if len(nodes) > 1:
                ws = (n.inputs[1] for n in nodes)
                yield Fusion(cls(), (x, *ws), tuple(nodes), product_results(nodes))

    @staticmethod
    def cases() -> Iterable[Case]:
        for i, types in enumerate(MIXED):
            for n in ((1, 5), (2, 17), (8, 33))[i % 3]:
                yield Case(x=f32(n, 512), ws=weights(types, 512))
        yield Case(x=f32(3, 256), ws=(rand("q4_k", 17, 256),))
        yield Case("gap,n=3", x=f32(3, 256, gap=32), ws=weights(MIXED[0], 256))
        yield Case("empty,n=0", x=f32(0, 256), ws=weights(MIXED[0], 256))
        yield Case("nan", x=fixed(rows_with_nan(3, 512)), ws=weights(MIXED[1], 512))
        for n in (1, 8):
            ws = (rand("q4_k", 10240, 5120), rand("q4_k", 6144, 5120))
            yield Case(x=f32(n, 5120), ws=ws, tags=("perf",))
