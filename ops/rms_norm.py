"""RMS normalisation."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..graph.case import Case, f32
from ..graph.op import Cost, Op, register
from ..graph.spec import TensorSpec


def normalised(x: np.ndarray, w: np.ndarray | None, eps: float) -> np.ndarray:
    """The reference of rms_norm."""
    wide = x.astype(np.float64)
    y = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + eps)
    return (y if w is None else y * w).astype(np.float32)


@register
class RmsNorm(Op):
    """y = x * w / sqrt(mean(x*x, last axis) + eps)

    x: [..., D] f32; w: [D] f32, optional (no w: plain normalisation); y like x.
    Source: Zhang & Sennrich 2019."""

    name, inputs, outputs = "rms_norm", ("x", "w?"), ("y",)
    inplace = {"y": "x"}
    constants = ("w",)
    rowwise = True
    eps: float

    def infer(self, x: TensorSpec, w: TensorSpec | None) -> TensorSpec:
        self.require(x.rank >= 1, "x", "at least rank 1", x.shape)
        self.require_dtype("x", x, "f32")
        self.require_attr(self.eps >= 0, "eps", "zero or positive")
        if w is not None:
            self.require_dtype("w", w, "f32")
            self.require(w.shape == x.shape[-1:], "w", f"{x.shape[-1:]}, x's last axis", w.shape)
        return x.like()

    def reference(self, x: np.ndarray, w: np.ndarray | None) -> np.ndarray:
        return normalised(x, w, self.eps)

    def cost(self, x: TensorSpec, w: TensorSpec | None) -> Cost:
        return Cost(4 * x.size, x.nbytes + (w.nbytes if w else 0), x.nbytes)

    @staticmethod
    def cases() -> Iterable[Case]:
        for n, d in ((1, 256), (4, 64), (7, 100), (1, 1), (3, 1)):
            yield Case(x=f32(n, d), w=f32(d), eps=1e-6)
        yield Case(x=f32(2, 4, 64), w=f32(64), eps=1e-6)
        yield Case(x=f32(3, 128), eps=1e-5)
        yield Case("gap,n=3,d=96", x=f32(3, 96, gap=32), w=f32(96), eps=1e-6)
        yield Case("tiny,n=2,d=64", x=f32(2, 64, lo=-1e-20, hi=1e-20), w=f32(64), eps=1e-6)
        yield Case("large,n=2,d=64", x=f32(2, 64, lo=-1e15, hi=1e15), w=f32(64), eps=1e-6)
        yield Case("empty,n=0,d=64", x=f32(0, 64), w=f32(64), eps=1e-6)
        yield Case(x=f32(512, 4096), w=f32(4096), eps=1e-6, tags=("perf",))
