"""Gated activations: an activation of the gate times the other half."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np

from ..graph.case import Case, f32, fixed
from ..graph.op import Cost, Op, register
from ..graph.spec import TensorSpec
from .unary import gelu_tanh, silu


class Glu(Op):
    """What the gated activations share: gate, up: [...] f32 of one shape; y like gate.
    `activation` maps the gate f64 to f64."""

    inputs, outputs = ("gate", "up"), ("y",)
    inplace = {"y": "gate up"}
    rowwise = True
    activation: ClassVar[Callable[..., Any]]

    def infer(self, gate: TensorSpec, up: TensorSpec) -> TensorSpec:
        self.require_dtype("gate", gate, "f32")
        self.require_dtype("up", up, "f32")
        self.require(up.shape == gate.shape, "up", f"{gate.shape}, the gate's shape", up.shape)
        return gate.like()

    def reference(self, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return (self.activation(gate.astype(np.float64)) * up).astype(np.float32)

    def cost(self, gate: TensorSpec, up: TensorSpec) -> Cost:
        return Cost(5 * gate.size, gate.nbytes + up.nbytes, gate.nbytes)

    @staticmethod
    def cases() -> Iterable[Case]:
        for shape in ((1, 256), (4, 64), (7, 33), (1, 1), (2, 3, 65), (5,)):
            yield Case(gate=f32(*shape, lo=-8, hi=8), up=f32(*shape))
        gate, up = f32(3, 40, lo=-8, hi=8, gap=40), f32(3, 40, gap=40)
        yield Case("halves,n=3,d=40", gate=gate, up=up)
        yield Case("gap in up,n=3,d=40", gate=f32(3, 40, lo=-8, hi=8), up=up)
        # Cases of their own: errors are judged against the size of a whole result.
        for label, edge in (
            ("zero", (0.0, -0.0)),
            ("above", (20.0, 90.0, 1e4)),
            ("below", (-20.0, -90.0, -1e4)),
            ("huge", (1e18, -1e18)),
        ):
            yield Case(label, gate=fixed([edge]), up=fixed([[2.0, -3.0, 1.5][: len(edge)]]))
        yield Case("empty,n=0,d=64", gate=f32(0, 64), up=f32(0, 64))
        for n in (1, 512):
            gate, up = f32(n, 3584, lo=-8, hi=8), f32(n, 3584)
            yield Case(gate=gate, up=up, tags=("perf",))


@register
class Swiglu(Glu):
    """y = silu(gate) * up

    gate, up: [...] f32; y like gate. Source: Shazeer 2020."""

    name = "swiglu"
    activation = staticmethod(silu)


@register
class Geglu(Glu):
    """y = gelu(gate) * up, gelu by its tanh approximation

    gate, up: [...] f32; y like gate. Source: Shazeer 2020."""

    name = "geglu"
    activation = staticmethod(gelu_tanh)
