"""Scaling by constants, and holding to a range."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from ..graph.case import Case, f32, fixed
from ..graph.op import Cost, Op, register
from ..graph.spec import TensorSpec


@register
class Scale(Op):
    """y = x * factor + bias

    x: [...] f32; y like x."""

    name, inputs, outputs = "scale", ("x",), ("y",)
    inplace = {"y": "x"}
    rowwise = True
    factor: float
    bias: float = 0.0

    def infer(self, x: TensorSpec) -> TensorSpec:
        self.require_dtype("x", x, "f32")
        self.require_attr(math.isfinite(self.factor), "factor", "finite")
        self.require_attr(math.isfinite(self.bias), "bias", "finite")
        return x.like()

    def reference(self, x: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return (x.astype(np.float64) * self.factor + self.bias).astype(np.float32)

    def cost(self, x: TensorSpec) -> Cost:
        return Cost(2 * x.size, x.nbytes, x.nbytes)

    @staticmethod
    def cases() -> Iterable[Case]:
        for shape in ((1, 256), (4, 64), (7, 33), (1, 1), (2, 3, 65), (5,)):
            yield Case(x=f32(*shape), factor=0.125)
        yield Case(x=f32(3, 40), factor=-2.5, bias=0.75)
        yield Case(x=f32(3, 40), factor=0.0, bias=1.0)
        yield Case("gap,n=3,d=40", x=f32(3, 40, gap=24), factor=3.0)
        yield Case("zero", x=fixed([[0.0, -0.0]]), factor=0.5)
        yield Case("tiny", x=fixed([[1e-30, -3e-30]]), factor=0.5)
        yield Case("large", x=fixed([[3e38, -3e38]]), factor=0.5, bias=-1.0)
        yield Case("overflow", x=fixed([[3e38, -3e38, 1.0]]), factor=2.0)
        yield Case("empty,n=0,d=64", x=f32(0, 64), factor=2.0)
        for n in (1, 512):
            yield Case(x=f32(n, 1024), factor=0.125, tags=("perf",))


@register
class Clamp(Op):
    """y = x limited to [min, max]; NaN stays NaN

    x: [...] f32; y like x. min, max: rounded to f32, either may be infinite."""

    name, inputs, outputs = "clamp", ("x",), ("y",)
    inplace = {"y": "x"}
    rowwise = True
    tolerance = 0.0  # an element or a bound, as it is
    min: float
    max: float

    def infer(self, x: TensorSpec) -> TensorSpec:
        self.require_dtype("x", x, "f32")
        self.require_attr(not math.isnan(self.min), "min", "a number")
        self.require_attr(self.min <= self.max, "max", f"at least min {self.min}")
        return x.like()

    def reference(self, x: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            low, high = np.float32(self.min), np.float32(self.max)
        return np.clip(x, low, high)

    @staticmethod
    def cases() -> Iterable[Case]:
        for shape in ((1, 256), (4, 64), (7, 33), (1, 1), (2, 3, 65), (5,)):
            yield Case(x=f32(*shape), min=-0.5, max=0.25)
        yield Case(x=f32(3, 40), min=0.1, max=0.1)
        yield Case(x=f32(3, 40), min=-math.inf, max=0.0)
        yield Case(x=f32(3, 40), min=0.0, max=math.inf)
        yield Case("gap,n=3,d=40", x=f32(3, 40, gap=24), min=-0.5, max=0.25)
        special = [[np.nan, np.inf, -np.inf, 0.0, 3e38, -3e38, np.nan]]
        yield Case("special", x=fixed(special), min=-1e30, max=2.5)
        yield Case("open", x=fixed(special), min=-math.inf, max=math.inf)
        yield Case("empty,n=0,d=64", x=f32(0, 64), min=0.0, max=1.0)
        for n in (1, 512):
            yield Case(x=f32(n, 1024), min=-0.5, max=0.5, tags=("perf",))
