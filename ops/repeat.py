"""Larger tensors from one: repeated, or with a border."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from ..graph.case import Case, f32, rand
from ..graph.op import Cost, Op, register
from ..graph.spec import TensorSpec


@register
class Repeat(Op):
    """y = x laid out repeats[a] times in a row along each axis a: y[i] = x[i mod the extent of x]

    x: [...] f32, f16, bf16 or i32; repeats: one positive number an axis; y: x's extents times
    repeats."""

    name, inputs, outputs = "repeat", ("x",), ("y",)
    tolerance = 0.0  # a copy
    no_rows = "rows are repeated along the axis that they lie along"
    repeats: tuple[int, ...]

    def infer(self, x: TensorSpec) -> TensorSpec:
        self.require_dtype("x", x, "f32", "f16", "bf16", "i32")
        ok = len(self.repeats) == x.rank and all(n >= 1 for n in self.repeats)
        self.require_attr(ok, "repeats", f"{x.rank} positive numbers, one an axis of x")
        return x.like(tuple(n * r for n, r in zip(x.shape, self.repeats, strict=True)))

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.tile(x, self.repeats)

    def cost(self, x: TensorSpec) -> Cost:
        return Cost(0, x.nbytes, self.infer(x).nbytes)

    @staticmethod
    def cases() -> Iterable[Case]:
        for shape, repeats in (
            ((4, 6), (1, 1)),
            ((4, 6), (3, 1)),
            ((4, 6), (1, 3)),
            ((3, 5), (2, 4)),
            ((1, 7), (5, 1)),
            ((7, 1), (1, 9)),
            ((2, 3, 4), (2, 1, 3)),
            ((2, 1, 3, 4), (1, 4, 1, 2)),
            ((5,), (3,)),
            ((), ()),
            ((0, 6), (2, 2)),
        ):
            yield Case(x=f32(*shape), repeats=repeats)
        for of in ("f16", "bf16", "i32"):
            yield Case(x=rand(of, 3, 5, lo=-9, hi=9), repeats=(2, 2))
        yield Case("gap", x=f32(3, 40, gap=24), repeats=(2, 3))
        yield Case(x=f32(16, 1024), repeats=(32, 1), tags=("perf",))
        yield Case(x=f32(512, 4, 1, 128), repeats=(1, 1, 4, 1), tags=("perf",))


@register
class Pad(Op):
    """y = x with a border of `value`

    x: [...] f32; before, after: how many elements to put before and after x along each axis; y:
    x's extents and those."""

    name, inputs, outputs = "pad", ("x",), ("y",)
    tolerance = 0.0  # a copy
    no_rows = "rows of the border lie along the axis of the rows"
    before: tuple[int, ...]
    after: tuple[int, ...]
    value: float = 0.0

    def infer(self, x: TensorSpec) -> TensorSpec:
        self.require_dtype("x", x, "f32")
        for attr, border in (("before", self.before), ("after", self.after)):
            ok = len(border) == x.rank and all(n >= 0 for n in border)
            self.require_attr(ok, attr, f"{x.rank} numbers of at least 0, one an axis of x")
        self.require_attr(not math.isnan(self.value), "value", "a number")
        sizes = zip(self.before, x.shape, self.after, strict=True)
        return x.like(tuple(sum(parts) for parts in sizes))

    def reference(self, x: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            fill = np.float32(self.value)
        y = np.full(self.infer(TensorSpec(x.shape)).shape, fill)
        y[tuple(slice(b, b + n) for b, n in zip(self.before, x.shape, strict=True))] = x
        return y

    def cost(self, x: TensorSpec) -> Cost:
        return Cost(0, x.nbytes, self.infer(x).nbytes)

    @staticmethod
    def cases() -> Iterable[Case]:
        for shape, before, after in (
            ((4, 6), (0, 0), (0, 0)),
            ((4, 6), (1, 0), (2, 0)),
            ((4, 6), (0, 3), (0, 5)),
            ((3, 5), (2, 1), (1, 2)),
            ((2, 3, 4), (0, 2, 0), (1, 0, 3)),
            ((2, 1, 9), (0, 0, 0), (0, 3, 0)),
            ((5,), (3,), (4,)),
            ((), (), ()),
            ((0, 6), (2, 0), (0, 1)),
            ((3, 0), (0, 2), (0, 2)),
        ):
            yield Case(x=f32(*shape), before=before, after=after)
        yield Case(x=f32(3, 5), before=(0, 0), after=(2, 4), value=-math.inf)
        yield Case(x=f32(3, 5), before=(1, 1), after=(1, 1), value=0.5)
        yield Case("gap", x=f32(3, 40, gap=24), before=(1, 2), after=(0, 3))
        yield Case(x=f32(512, 1000), before=(0, 0), after=(0, 24), tags=("perf",))
