"""Tensors side by side."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..graph.case import Case, f32, rand
from ..graph.op import Cost, Op, register
from ..graph.spec import TensorSpec


@register
class Concat(Op):
    """y = the inputs one after the other along an axis

    xs: one or more tensors of one element type (f32, f16, bf16, i32) whose shapes agree except
    along `axis` (a negative one counts from the end); y: their extents added up along it."""

    name, inputs, outputs = "concat", ("*xs",), ("y",)
    tolerance = 0.0  # a copy
    no_rows = "the inputs may lie one after the other along the axis of the rows"
    axis: int

    def infer(self, *xs: TensorSpec) -> TensorSpec:
        self.require(len(xs) > 0, "xs", "one tensor or more", "none")
        first = xs[0]
        self.require_attr(-first.rank <= self.axis < first.rank, "axis", f"an axis of {first}")
        axis = self.axis % first.rank
        self.require_dtype("xs[0]", first, "f32", "f16", "bf16", "i32")
        for i, x in enumerate(xs[1:], 1):
            self.require_dtype(f"xs[{i}]", x, first.dtype.name)
            alike = x.rank == first.rank and all(
                n == m
                for a, (n, m) in enumerate(zip(x.shape, first.shape, strict=True))
                if a != axis
            )
            want = f"{first.shape} but for axis {axis}"
            self.require(alike, f"xs[{i}]", want, x.shape)
        along = sum(x.shape[axis] for x in xs)
        return first.like((*first.shape[:axis], along, *first.shape[axis + 1 :]))

    def reference(self, *xs: np.ndarray) -> np.ndarray:
        return np.concatenate(xs, self.axis)

    def cost(self, *xs: TensorSpec) -> Cost:
        total = sum(x.nbytes for x in xs)
        return Cost(0, total, total)

    @staticmethod
    def cases() -> Iterable[Case]:
        for axis, shapes in (
            (0, ((2, 5), (1, 5))),
            (1, ((3, 8), (3, 24), (3, 1))),
            (-1, ((3, 8), (3, 24))),
            (1, ((2, 3, 4), (2, 1, 4))),
            (-3, ((2, 3, 4), (1, 3, 4))),
            (0, ((7,),)),
            (0, ((0, 5), (2, 5), (0, 5))),
            (1, ((0, 5), (0, 3))),
            (1, ((3, 0), (3, 2))),
        ):
            yield Case(xs=tuple(f32(*s) for s in shapes), axis=axis)
        for of in ("f16", "bf16", "i32"):
            for axis in (0, 1):
                pair = tuple(rand(of, 4, 6, lo=-9, hi=9) for _ in range(2))
                yield Case(xs=pair, axis=axis)
        yield Case("gap,axis=1", xs=(f32(3, 40, gap=24), f32(3, 8)), axis=1)
        yield Case("gap,axis=0", xs=(f32(3, 40, gap=24), f32(2, 40, gap=8)), axis=0)
        for n in (1, 512):
            yield Case(xs=(f32(n, 1024), f32(n, 1024)), axis=1, tags=("perf",))
