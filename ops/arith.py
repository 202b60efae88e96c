"""Elementwise arithmetic of two tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np

from ..graph.case import Case, f32, fixed
from ..graph.op import Op, register
from ..graph.spec import TensorSpec


class Arith(Op):
    """What the arithmetic ops share: a, b: f32; b broadcasts to a's shape by numpy's rules; y: f32
    of a's shape. The array function `f` is the meaning."""

    inputs, outputs = ("a", "b"), ("y",)
    inplace = {"y": "a"}
    rowwise = True
    broadcasts = ("b",)
    tolerance = 0.0  # one IEEE operation an element, which has one right answer
    f: ClassVar[Callable[..., Any]]

    def infer(self, a: TensorSpec, b: TensorSpec) -> TensorSpec:
        self.require_dtype("a", a, "f32")
        self.require_dtype("b", b, "f32")
        tail = a.shape[a.rank - b.rank :] if b.rank <= a.rank else ()
        fits = b.rank <= a.rank and all(m in (n, 1) for m, n in zip(b.shape, tail, strict=True))
        self.require(fits, "b", f"broadcastable to a's {a.shape}", b.shape, "a is the larger one")
        return a.like()

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            return self.f(a, b).astype(np.float32)

    @staticmethod
    def cases() -> Iterable[Case]:
        for shape in ((1, 256), (4, 64), (7, 33), (1, 1), (2, 3, 65), (5,)):
            yield Case(a=f32(*shape), b=f32(*shape))
        for b in ((20,), (5, 3, 1), (3, 1), (1, 3, 20), (5, 1, 20), (1,), ()):
            yield Case(a=f32(5, 3, 20), b=f32(*b))
        yield Case(a=f32(4, 64), b=f32(64))
        yield Case(a=f32(20, 20), b=f32(20))
        yield Case("gap,n=3,d=40", a=f32(3, 40, gap=24), b=f32(3, 40, gap=8))
        yield Case("gap in b,n=3,d=40", a=f32(3, 40), b=f32(3, 40, gap=24))
        yield Case(
            "wide,n=2,d=64", a=f32(2, 64, lo=-1e18, hi=1e18), b=f32(2, 64, lo=-1e18, hi=1e18)
        )
        yield Case("zero", a=fixed([[0.0, -0.0, 0.0]]), b=fixed([[-0.0, -0.0, 0.0]]))
        yield Case("tiny", a=fixed([[1e-30, -1e-30]]), b=fixed([[-2e-30, 3e-30]]))
        yield Case("overflow", a=fixed([[3e38, -3e38, 1e30]]), b=fixed([[2e38, 1e38, 1e30]]))
        yield Case(a=f32(0, 64), b=f32(0, 64))
        yield Case(a=f32(0, 64), b=f32(64))
        for n in (1, 512):
            yield Case(a=f32(n, 1024), b=f32(n, 1024), tags=("perf",))


@register
class Add(Arith):
    """y = a + b

    a: [...] f32; b: f32, broadcasts to a; y like a."""

    name = "add"
    f = np.add


@register
class Sub(Arith):
    """y = a - b

    a: [...] f32; b: f32, broadcasts to a; y like a."""

    name = "sub"
    f = np.subtract


@register
class Mul(Arith):
    """y = a * b

    a: [...] f32; b: f32, broadcasts to a; y like a."""

    name = "mul"
    f = np.multiply


@register
class Div(Arith):
    """y = a / b

    a: [...] f32; b: f32, broadcasts to a; y like a, infinite or NaN where b is zero (IEEE 754)."""

    name = "div"
    f = np.divide
