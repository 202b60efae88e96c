"""A part of a tensor replaced."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..graph.case import Case, f32, rand
from ..graph.op import Cost, Op, register
from ..graph.spec import TensorSpec
from .reduce import axis_of


@register
class Set(Op):
    """y = dst with y[..., start : start + n, ...] = src along one axis, n being src's extent there

    dst: [...] f32, f16 or i32; src: the same type and shape but for its extent along `axis` (a
    negative one counts from the end); y like dst, which stays as it is."""

    name, inputs, outputs = "set", ("dst", "src"), ("y",)
    inplace = {"y": "dst"}
    tolerance = 0.0  # a copy
    no_rows = "which rows are replaced is an attribute"
    axis: int
    start: int

    def infer(self, dst: TensorSpec, src: TensorSpec) -> TensorSpec:
        self.require_dtype("dst", dst, "f32", "f16", "i32")
        self.require_dtype("src", src, dst.dtype.name)
        axis = axis_of(self, self.axis, dst.rank)
        like = src.rank == dst.rank and all(
            n == m for a, (n, m) in enumerate(zip(src.shape, dst.shape, strict=True)) if a != axis
        )
        self.require(like, "src", f"{dst.shape} but for axis {axis}", src.shape)
        room = dst.shape[axis] - src.shape[axis]
        want = f"at most {dst.shape[axis]} long along axis {axis}, as dst is"
        self.require(room >= 0, "src", want, src.shape)
        self.require_attr(0 <= self.start <= room, "start", f"from 0 to {room}")
        return dst.like()

    def reference(self, dst: np.ndarray, src: np.ndarray) -> np.ndarray:
        y = dst.copy()
        axis = self.axis % dst.ndim
        where = [slice(None)] * dst.ndim
        where[axis] = slice(self.start, self.start + src.shape[axis])
        y[tuple(where)] = src
        return y

    def cost(self, dst: TensorSpec, src: TensorSpec) -> Cost:
        return Cost(0, dst.nbytes + src.nbytes, dst.nbytes)

    @staticmethod
    def cases() -> Iterable[Case]:
        for shape, n, axis, start in (
            ((4, 6), 2, 0, 1),
            ((4, 6), 3, 1, 2),
            ((4, 6), 4, 0, 0),
            ((4, 6), 6, 1, 0),
            ((4, 6), 1, -1, 5),
            ((4, 6), 0, 1, 6),
            ((2, 5, 7), 2, 1, 3),
            ((2, 5, 7), 1, -3, 0),
            ((9,), 4, 0, 5),
            ((0, 6), 2, 1, 3),
            ((3, 65), 33, 1, 31),
        ):
            at = axis % len(shape)
            src = (*shape[:at], n, *shape[at + 1 :])
            yield Case(dst=f32(*shape), src=f32(*src), axis=axis, start=start)
        for of in ("f16", "i32"):
            dst, part = rand(of, 4, 6, lo=-9, hi=9), rand(of, 4, 3, lo=-9, hi=9)
            yield Case(dst=dst, src=part, axis=1, start=2)
        yield Case("gap", dst=f32(4, 40, gap=24), src=f32(2, 40, gap=8), axis=0, start=1)
        yield Case("gap in src", dst=f32(4, 40), src=f32(4, 20, gap=20), axis=1, start=3)
        yield Case(dst=f32(512, 1024), src=f32(512, 256), axis=1, start=256, tags=("perf",))
