"""Layer normalisation."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..graph.case import Case, f32
from ..graph.op import Cost, Op, register
from ..graph.spec import TensorSpec


@register
class Norm(Op):
    """y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * w + b, means along the last axis

    x: [..., D] f32, D at least 1; w, b: [D] f32, each optional (1 and 0 without); y like x.
    Source: Ba, Kiros & Hinton 2016."""

    name, inputs, outputs = "norm", ("x", "w?", "b?"), ("y",)
    inplace = {"y": "x"}
    constants = ("w", "b")
    rowwise = True
    eps: float

    def infer(self, x: TensorSpec, w: TensorSpec | None, b: TensorSpec | None) -> TensorSpec:
        ok = x.rank >= 1 and x.shape[-1] >= 1
        self.require(ok, "x", "at least rank 1, with one element or more in a row", x.shape)
        self.require_dtype("x", x, "f32")
        self.require_attr(self.eps >= 0, "eps", "zero or positive")
        for arg, spec in (("w", w), ("b", b)):
            if spec is not None:
                self.require_dtype(arg, spec, "f32")
                row = x.shape[-1:]
                self.require(spec.shape == row, arg, f"{row}, x's last axis", spec.shape)
        return x.like()

    def reference(self, x: np.ndarray, w: np.ndarray | None, b: np.ndarray | None) -> np.ndarray:
        wide = x.astype(np.float64)
        wide = wide - wide.mean(-1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            y = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + self.eps)
        y = y if w is None else y * w
        return (y if b is None else y + b).astype(np.float32)

    def cost(self, x: TensorSpec, w: TensorSpec | None, b: TensorSpec | None) -> Cost:
        read = sum(s.nbytes for s in (x, w, b) if s is not None)
        return Cost(7 * x.size, read, x.nbytes)

    @staticmethod
    def cases() -> Iterable[Case]:
        for n, d in ((1, 256), (4, 64), (7, 100), (1, 1), (3, 1)):
            yield Case(x=f32(n, d), w=f32(d), b=f32(d), eps=1e-6)
        yield Case(x=f32(2, 4, 64), w=f32(64), b=f32(64), eps=1e-6)
        yield Case(x=f32(3, 128), eps=1e-5)
        yield Case(x=f32(3, 128), w=f32(128), eps=1e-5)
        yield Case(x=f32(3, 128), b=f32(128), eps=1e-5)
        yield Case(x=f32(33), w=f32(33), b=f32(33), eps=1e-5)
        yield Case("gap,n=3,d=96", x=f32(3, 96, gap=32), w=f32(96), b=f32(96), eps=1e-6)
        yield Case("offset,n=2,d=64", x=f32(2, 64, lo=1000, hi=1001), eps=1e-6)
        yield Case("tiny,n=2,d=64", x=f32(2, 64, lo=-1e-20, hi=1e-20), w=f32(64), eps=1e-6)
        yield Case("large,n=2,d=64", x=f32(2, 64, lo=-1e15, hi=1e15), w=f32(64), eps=1e-6)
        yield Case("empty,n=0,d=64", x=f32(0, 64), w=f32(64), b=f32(64), eps=1e-6)
        yield Case(x=f32(512, 4096), w=f32(4096), b=f32(4096), eps=1e-6, tags=("perf",))
