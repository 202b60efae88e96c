"""Softmax with an additive mask."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from ..graph.case import Case, Fixed, f32, fixed
from ..graph.op import Cost, Op, register
from ..graph.spec import TensorSpec
from .ragged import require_dense_rows


@register
class Softmax(Op):
    """y = exp(s - max(s)) / sum(exp(s - max(s))) along the last axis, s = x * scale + mask

    x: [..., D] f32; mask: f32, broadcasts to x by numpy's rules, minus infinity hides an element;
    the rows of both may have gaps. y like x. A row with nothing to see (every s minus infinity)
    gives zeros; a row with NaN or plus infinity in s gives NaN."""

    name, inputs, outputs = "softmax", ("x", "mask?"), ("y",)
    inplace = {"y": "x"}
    rowwise = True
    broadcasts = ("mask",)
    scale: float = 1.0

    def infer(self, x: TensorSpec, mask: TensorSpec | None) -> TensorSpec:
        self.require_attr(math.isfinite(self.scale), "scale", "finite")
        self.require(x.rank >= 1, "x", "at least rank 1", x.shape)
        self.require_dtype("x", x, "f32")
        require_dense_rows(self, "x", x)
        if mask is not None:
            self.require_dtype("mask", mask, "f32")
            tail = x.shape[x.rank - mask.rank :] if mask.rank <= x.rank else ()
            fits = mask.rank <= x.rank
            fits = fits and all(m in (n, 1) for m, n in zip(mask.shape, tail, strict=True))
            self.require(fits, "mask", f"broadcastable to x's {x.shape}", mask.shape)
            require_dense_rows(self, "mask", mask)
        return x.like()

    def reference(self, x: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        score = x.astype(np.float64) * self.scale
        with np.errstate(invalid="ignore"):
            score = score if mask is None else score + mask
            top = score.max(-1, keepdims=True, initial=-np.inf)
            weight = np.exp(score - np.where(top == -np.inf, 0.0, top))
        total = weight.sum(-1, keepdims=True)
        return (weight / np.where(total == 0, 1.0, total)).astype(np.float32)

    def cost(self, x: TensorSpec, mask: TensorSpec | None) -> Cost:
        read = x.nbytes + (mask.nbytes if mask is not None else 0)
        return Cost(6 * x.size, read, x.nbytes)

    @staticmethod
    def cases() -> Iterable[Case]:
        for shape in ((1, 256), (4, 64), (7, 33), (1, 1), (3, 1), (2, 3, 65), (5,)):
            yield Case(x=f32(*shape, lo=-8, hi=8))
        yield Case(x=f32(3, 40, lo=-80, hi=80), scale=0.125)
        yield Case(x=f32(3, 40), scale=0.0)
        yield Case(x=f32(3, 40, lo=-8, hi=8), scale=-1.0)
        for mask in ((3, 4, 20), (4, 20), (1, 20), (3, 1, 20), (20,), (4, 1), (1,), ()):
            yield Case(x=f32(3, 4, 20, lo=-8, hi=8), mask=f32(*mask, lo=-8, hi=8), scale=0.5)
        yield Case(x=f32(20, 20, lo=-8, hi=8), mask=f32(20, lo=-8, hi=8))
        yield Case("causal", x=f32(2, 9, 9, lo=-8, hi=8), mask=_causal(9), scale=0.25)
        hidden = [[-np.inf] * 6, [-np.inf] * 5 + [0.0], [0.0] * 6]
        yield Case("hidden rows", x=f32(3, 6), mask=fixed(hidden))
        yield Case("minus infinity", x=fixed([[-np.inf, 0.0, 1.0], [-np.inf] * 3]))
        yield Case("nan", x=fixed([[np.nan, 0.0, 1.0], [np.inf, 0.0, 1.0], [2.0, 0.0, 1.0]]))
        yield Case("far apart", x=fixed([[3e38, -3e38, 0.0], [-3e38, -3e38, -3e38]]))
        yield Case("gap,n=3,d=40", x=f32(3, 40, gap=24), mask=f32(3, 40, gap=8))
        yield Case("empty,n=0,d=64", x=f32(0, 64), mask=f32(64))
        yield Case("no elements", x=f32(3, 0))
        for n, d in ((32, 4096), (1, 248320)):
            yield Case(x=f32(n, d, lo=-8, hi=8), tags=("perf",))
        yield Case(x=f32(8, 512, 512), mask=f32(512, 512), scale=0.125, tags=("perf",))


def _causal(n: int) -> Fixed:
    return fixed(np.where(np.tri(n), 0.0, -np.inf))
