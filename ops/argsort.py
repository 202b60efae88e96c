"""The order of elements by size."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..graph.case import Case, f32, fixed
from ..graph.dtype import i32
from ..graph.op import Cost, Op, register
from ..graph.spec import TensorSpec
from .argmax import ranked, rows


@register
class Argsort(Op):
    """y[j] = where the j-th element along the last axis comes from when it is sorted

    x: [..., D] f32; y: like x, i32. order: "asc" smallest first, "desc" largest first; equal
    elements keep their order in both. NaN counts as minus infinity."""

    name, inputs, outputs = "argsort", ("x",), ("y",)
    rowwise = True
    order: str

    def infer(self, x: TensorSpec) -> TensorSpec:
        self.require_attr(self.order in ("asc", "desc"), "order", "'asc' or 'desc'")
        self.require(x.rank >= 1, "x", "at least rank 1", x.shape)
        self.require_dtype("x", x, "f32")
        return x.like(dtype=i32)

    def reference(self, x: np.ndarray) -> np.ndarray:
        keys = ranked(x) if self.order == "asc" else -ranked(x)
        return np.argsort(keys, axis=-1, kind="stable").astype(np.int32)

    def cost(self, x: TensorSpec) -> Cost:
        comparisons = x.size * max(1, (x.shape[-1] - 1).bit_length()) if x.size else 0
        return Cost(comparisons, x.nbytes, x.nbytes)

    @staticmethod
    def cases() -> Iterable[Case]:
        nan = fixed([[np.nan, -1.0, np.nan, 3.0], [np.nan] * 4, [1.0, -np.inf, np.nan, -np.inf]])
        for order in ("asc", "desc"):
            for case in rows():
                label = case.label or "x".join(map(str, case.named["x"].shape))
                yield Case(f"{label},{order}", x=case.named["x"], order=order)
            many = np.random.default_rng(3).integers(0, 9, (3, 300))
            yield Case(f"many ties,{order}", x=fixed(many.astype(np.float32)), order=order)
            yield Case(f"nan,{order}", x=nan, order=order)
            yield Case(x=f32(4, 1000), order=order)
        for n, d in ((1, 248320), (512, 128)):
            yield Case(x=f32(n, d), order="desc", tags=("perf",))
