"""Elementwise functions of one tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np

from ..graph.case import Case, f32, fixed
from ..graph.op import Op, register
from ..graph.spec import TensorSpec


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def silu(x: np.ndarray) -> np.ndarray:
    """x * sigmoid(x)."""
    return x * sigmoid(x)


def softplus(x: np.ndarray) -> np.ndarray:
    """log(1 + exp(x)), which above 20 is x to f32's precision."""
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """The tanh approximation of x times the normal distribution function (Hendrycks 2016), with
    (1 + tanh u) / 2 as sigmoid(2 u), which keeps its lower tail exact."""
    return x * sigmoid(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))


_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def gelu_erf(x: np.ndarray) -> np.ndarray:
    """x times the normal distribution function; erfc keeps its lower tail exact."""
    return 0.5 * x * _erfc(x * -math.sqrt(0.5))


class Unary(Op):
    """What the unary ops share: x: [...] f32; y like x. `f` maps f64 to f64 and is the meaning;
    lo and hi bound the ordinary inputs of its cases. Each group of edges is a case of its own,
    since errors are judged against the size of a whole result."""

    inputs, outputs = ("x",), ("y",)
    inplace = {"y": "x"}
    rowwise = True
    f: ClassVar[Callable[..., Any]]
    lo: ClassVar[float] = -8.0
    hi: ClassVar[float] = 8.0
    edges: ClassVar[dict[str, tuple[float, ...]]] = {
        "zero": (0.0, -0.0),
        "tiny": (1e-30, -1e-30, 1e-20),
        "small": (1e-6, -1e-6, 1e-3),
        "above": (20.0, 20.5, 21.0, 80.0, 90.0, 120.0),
        "below": (-16.0, -20.0, -20.5, -80.0, -90.0, -120.0),
        "far": (1e4, -1e4, 3e4, -3e4),
        "huge": (1e18, -1e18),
    }

    def infer(self, x: TensorSpec) -> TensorSpec:
        self.require_dtype("x", x, "f32")
        return x.like()

    def reference(self, x: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            return self.f(x.astype(np.float64)).astype(np.float32)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        for shape in ((1, 256), (4, 64), (7, 33), (1, 1), (2, 3, 65), (5,)):
            yield Case(x=f32(*shape, lo=cls.lo, hi=cls.hi))
        yield Case("gap,n=3,d=40", x=f32(3, 40, lo=cls.lo, hi=cls.hi, gap=24))
        for label, edges in cls.edges.items():
            yield Case(label, x=fixed([edges]))
        yield Case("empty,n=0,d=64", x=f32(0, 64))
        for n in (1, 512):
            yield Case(x=f32(n, 1024, lo=cls.lo, hi=cls.hi), tags=("perf",))


@register
class Silu(Unary):
    """y = x / (1 + exp(-x))

    x: [...] f32; y like x. Source: Elfwing et al. 2017."""

    name = "silu"
    f = staticmethod(silu)


@register
class Gelu(Unary):
    """y = x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x^3)))

    x: [...] f32; y like x. Source: Hendrycks & Gimpel 2016, tanh approximation."""

    name = "gelu"
    f = staticmethod(gelu_tanh)


@register
class GeluErf(Unary):
    """y = x/2 * (1 + erf(x / sqrt(2)))

    x: [...] f32; y like x. Source: Hendrycks & Gimpel 2016, exact form."""

    name = "gelu_erf"
    f = staticmethod(gelu_erf)


@register
class Sigmoid(Unary):
    """y = 1 / (1 + exp(-x))

    x: [...] f32; y like x."""

    name = "sigmoid"
    f = staticmethod(sigmoid)


@register
class Softplus(Unary):
    """y = x for x > 20, else log(1 + exp(x))

    x: [...] f32; y like x."""

    name = "softplus"
    f = staticmethod(softplus)


@register
class Tanh(Unary):
    """y = tanh(x)

    x: [...] f32; y like x."""

    name = "tanh"
    f = staticmethod(np.tanh)


@register
class Exp(Unary):
    """y = exp(x)

    x: [...] f32; y like x, infinite where exp(x) exceeds the f32 range."""

    name = "exp"
    lo = -20.0
    f = staticmethod(np.exp)


@register
class Log(Unary):
    """y = log(x), the natural one

    x: [...] f32; y like x, minus infinity for zero and NaN for negative numbers."""

    name = "log"
    lo = 0.01
    edges = {
        "zero": (0.0, -0.0),
        "negative": (-1.0, -1e-30),
        "one": (1.0,),
        "near one": (0.9999, 1.0001, 0.99, 1.01),
        "tiny": (2e-38, 1e-30, 1e-40),
        "huge": (1e18, 3e38),
        "infinite": (float("inf"), 1.0),
    }
    f = staticmethod(np.log)


@register
class Sin(Unary):
    """y = sin(x)

    x: [...] f32, radians of any size; y like x."""

    name = "sin"
    edges = Unary.edges | {"turns": (3.1415927, -3.1415927, 6.2831855), "mid": (100.0, 1e5, 1e6)}
    f = staticmethod(np.sin)


@register
class Cos(Unary):
    """y = cos(x)

    x: [...] f32, radians of any size; y like x."""

    name = "cos"
    edges = Unary.edges | {"turns": (1.5707964, -1.5707964, 4.712389), "mid": (100.0, 1e5, 1e6)}
    f = staticmethod(np.cos)


@register
class Abs(Unary):
    """y = |x|

    x: [...] f32; y like x."""

    name = "abs"
    tolerance = 0.0  # a sign changes
    f = staticmethod(np.abs)


@register
class Neg(Unary):
    """y = -x

    x: [...] f32; y like x."""

    name = "neg"
    tolerance = 0.0  # a sign changes
    f = staticmethod(np.negative)


@register
class Sqr(Unary):
    """y = x * x

    x: [...] f32; y like x."""

    name = "sqr"
    f = staticmethod(np.square)


@register
class Sqrt(Unary):
    """y = sqrt(x)

    x: [...] f32, not negative (the root of a negative number is NaN); y like x."""

    name = "sqrt"
    lo = 0.0
    edges = {
        "zero": (0.0, -0.0),
        "tiny": (2e-38, 1e-30),
        "whole": (0.25, 4.0),
        "huge": (1e18, 3e38),
    }
    f = staticmethod(np.sqrt)


@register
class Relu(Unary):
    """y = max(x, 0)

    x: [...] f32; y like x."""

    name = "relu"
    tolerance = 0.0  # the element as it is, or zero

    @staticmethod
    def f(x: np.ndarray) -> np.ndarray:
        """NaN stays NaN."""
        return np.maximum(x, 0.0)
