"""L2 normalisation."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..graph.case import Case, f32, fixed
from ..graph.op import Cost, Op, register
from ..graph.spec import TensorSpec

FORMS = ("add", "max")


@register
class L2Norm(Op):
    """form "add": y = x / sqrt(sum(x*x, last axis) + eps); "max": y = x / max(sqrt(sum), eps)

    x: [..., D] f32; y like x. The two forms differ for short rows only, which is why there is no
    default: delta-net keys and queries use "add", the older operator of the same name "max"."""

    name, inputs, outputs = "l2_norm", ("x",), ("y",)
    inplace = {"y": "x"}
    rowwise = True
    eps: float
    form: str

    def infer(self, x: TensorSpec) -> TensorSpec:
        self.require(x.rank >= 1, "x", "at least rank 1", x.shape)
        self.require_dtype("x", x, "f32")
        self.require_attr(0 <= self.eps < np.inf, "eps", "zero or positive")
        self.require_attr(self.form in FORMS, "form", " or ".join(FORMS))
        return x.like()

    def reference(self, x: np.ndarray) -> np.ndarray:
        return normalised(x, self.eps, self.form)

    def cost(self, x: TensorSpec) -> Cost:
        return Cost(3 * x.size, x.nbytes, x.nbytes)

    @staticmethod
    def cases() -> Iterable[Case]:
        for form in FORMS:
            for shape in ((1, 128), (4, 64), (7, 33), (1, 1), (3, 1), (2, 16, 128), (5,)):
                yield Case(x=f32(*shape), eps=1e-6, form=form)
            for label, x in (
                ("gap,n=3,d=96", f32(3, 96, gap=32)),
                ("zero,n=2,d=64", fixed(np.zeros((2, 64)))),
                ("tiny,n=2,d=64", f32(2, 64, lo=-1e-20, hi=1e-20)),
                ("near eps,n=2,d=64", f32(2, 64, lo=-1e-4, hi=1e-4)),
                ("large,n=2,d=64", f32(2, 64, lo=-1e15, hi=1e15)),
                ("empty,n=0,d=64", f32(0, 64)),
            ):
                yield Case(f"{label},{form}", x=x, eps=1e-6, form=form)
        for n in (1, 512):
            yield Case(x=f32(n, 16, 128), eps=1e-6, form="add", tags=("perf",))


def normalised(x: np.ndarray, eps: float, form: str) -> np.ndarray:
    """Rows of the last axis over their length, f32."""
    wide = x.astype(np.float64)
    total = (wide * wide).sum(-1, keepdims=True)
    length = np.sqrt(total + eps) if form == "add" else np.maximum(np.sqrt(total), eps)
    return (wide / length).astype(np.float32)
