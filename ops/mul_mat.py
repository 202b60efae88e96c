"""Matrix product of activations with weight rows."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from ..graph.case import Case, f32, fixed, rand
from ..graph.dtype import dtype
from ..graph.op import Cost, Op, register
from ..graph.spec import TensorSpec
from .ragged import require_contiguous, require_dense_rows

WEIGHT_TYPES = (
    *("f32", "f16", "bf16", "q8_0", "q5_0", "q4_k", "q6_k"),
    *("q4_0", "q4_1", "q5_1", "iq4_nl", "mxfp4", "q2_k", "q3_k", "q5_k", "iq4_xs"),
    *("iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s"),
)


# Activations are rounded to 8 bits (one scale per 32 values) for weights of block types: a rounding
# step of max/127 gives an error of 1.6e-5 of a uniform row's power, and more for rows of few large
# values.
QUANTISED_PRODUCT = 2e-4


def rows_with_nan(n: int, k: int) -> np.ndarray:
    """f32 [n, k] for cases: row 1 is NaN of all kinds, and row 2 of n or more has one NaN."""
    x = np.sin(np.arange(n * k, dtype=np.float32)).reshape(n, k)
    x[1].view(np.uint32)[:] = np.resize(np.array([0x7FFFFFFF, 0x7FC00000, 0xFFC00001]), k)
    x[2, k // 3] = np.nan
    return x


@register
class MulMat(Op):
    """y[..., m] = sum over k of x[..., k] * w[m, k]

    x: [..., K] f32, its rows may have gaps; w: [M, K] f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1,
    q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl, iq4_xs, mxfp4, iq2_xxs, iq2_xs, iq2_s, iq3_xxs or iq3_s,
    contiguous; y: [..., M] f32."""

    name, inputs, outputs = "mul_mat", ("x", "w"), ("y",)
    constants = ("w",)
    rowwise = True
    tolerance = 1e-10  # sums of several thousand f32 products
    block_tolerance = QUANTISED_PRODUCT

    def infer(self, x: TensorSpec, w: TensorSpec) -> TensorSpec:
        self.require(x.rank >= 1, "x", "at least rank 1", x.shape)
        self.require_dtype("x", x, "f32")
        require_dense_rows(self, "x", x)
        self.require(w.rank == 2, "w", "rank 2, [M, K]", w.shape)
        self.require_dtype("w", w, *WEIGHT_TYPES)
        require_contiguous(self, "w", w)
        k = x.shape[-1]
        self.require(w.shape[1] == k, "w", f"[M, {k}] for x {x.shape}", w.shape)
        return x.like((*x.shape[:-1], w.shape[0]))

    def reference(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        wide = w.astype(np.float64)
        y = np.zeros_like(rows, np.float32, shape=(len(rows), len(w)))
        # One product a row: a matrix product may sum in another order for another number of rows.
        for i, row in enumerate(rows.astype(np.float64)):
            y[i] = wide @ row
        return y.reshape(*x.shape[:-1], len(w))

    def cost(self, x: TensorSpec, w: TensorSpec) -> Cost:
        rows = math.prod(x.shape[:-1])
        return Cost(2 * rows * w.size, x.nbytes + w.nbytes, 4 * rows * w.shape[0])

    @staticmethod
    def cases() -> Iterable[Case]:
        # Pairwise: each weight type with every N, M and K, and each N with every M.
        for i, of in enumerate(WEIGHT_TYPES):
            ks = (256, 512, 768) if dtype(of).block == 256 else (32, 64, 256, 512)
            for j, n in enumerate((1, 2, 3, 4, 5, 8, 17)):
                m, k = (1, 16, 17, 33, 64, 100)[(i + j) % 6], ks[(2 * i + j + i // 2) % len(ks)]
                if m == 1 and n < 8 and dtype(of).quantized:
                    m = 15  # rounded x has an error on average, which takes more than a few sums
                yield Case(x=f32(n, k), w=rand(of, m, k))
        for n, m, k in ((1, 1, 1), (3, 5, 33), (2, 7, 100)):
            for of in ("f32", "f16"):
                yield Case(x=f32(n, k), w=rand(of, m, k))
        yield Case(x=f32(64), w=rand("q8_0", 17, 64))
        yield Case(x=f32(2, 3, 256), w=rand("q4_k", 17, 256))
        yield Case("gap,q8_0", x=f32(3, 64, gap=32), w=rand("q8_0", 33, 64))
        yield Case("gap,f16", x=f32(3, 64, gap=5), w=rand("f16", 33, 64))
        yield Case("zero,q8_0", x=fixed(np.zeros((2, 64))), w=rand("q8_0", 17, 64))
        yield Case("empty,n=0", x=f32(0, 64), w=rand("f16", 17, 64))
        # Sums far beyond the f16 range.
        for of in ("f16", "bf16", "q8_0", "q4_k"):
            x = f32(2, 512, lo=-3e5, hi=3e5)
            yield Case(f"large,{of}", x=x, w=rand(of, 33, 512, lo=-8, hi=8))
        # NaN in x makes its own row NaN and no other.
        for of in WEIGHT_TYPES:
            yield Case(f"nan,{of}", x=fixed(rows_with_nan(3, 512)), w=rand(of, 17, 512))
        for n in (1, 4, 512):
            for of in WEIGHT_TYPES:
                yield Case(x=f32(n, 1024), w=rand(of, 3584, 1024), tags=("perf",))
            yield Case(x=f32(n, 3584), w=rand("q8_0", 1024, 3584), tags=("perf",))
        yield Case("head,q8_0", x=f32(1, 1024), w=rand("q8_0", 32768, 1024), tags=("perf",))
