"""Sums and means along an axis, and running sums."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..graph.case import Case, f32, fixed
from ..graph.op import Cost, Op, register
from ..graph.spec import TensorSpec
from .ragged import require_dense_rows


def axis_of(op: Op, axis: int, rank: int) -> int:
    """An axis counted from the front. Raises AttributeValueError where there is none such."""
    op.require_attr(-rank <= axis < rank, "axis", f"an axis of rank {rank}")
    return axis % rank


@dataclass(frozen=True, kw_only=True)
class Reduce(Op):
    """What the reductions share: x: [...] f32, its rows may have gaps; y: f32, the shape of x with
    extent 1 along `axis` (a negative one counts from the end), or without that axis for keepdims
    False."""

    inputs, outputs = ("x",), ("y",)
    no_rows = "the axis that is summed over may be that of the rows"
    axis: int
    keepdims: bool = True

    def infer(self, x: TensorSpec) -> TensorSpec:
        self.require_dtype("x", x, "f32")
        require_dense_rows(self, "x", x)
        axis = axis_of(self, self.axis, x.rank)
        kept = (1,) if self.keepdims else ()
        return x.like((*x.shape[:axis], *kept, *x.shape[axis + 1 :]))

    def cost(self, x: TensorSpec) -> Cost:
        return Cost(x.size, x.nbytes, self.infer(x).nbytes)

    @staticmethod
    def cases() -> Iterable[Case]:
        for shape in ((1, 256), (4, 64), (7, 33), (1, 1), (2, 3, 65)):
            for axis in range(len(shape)):
                yield Case(x=f32(*shape), axis=axis)
        yield Case(x=f32(5, 3, 20), axis=-1)
        for axis in (0, 1, -1):
            yield Case(x=f32(5, 3, 20), axis=axis, keepdims=False)
        yield Case(x=f32(17), axis=0)
        yield Case(x=f32(17), axis=0, keepdims=False)
        yield Case("gap,axis=0", x=f32(3, 40, gap=24), axis=0)
        yield Case("gap,axis=1", x=f32(3, 40, gap=24), axis=1)
        yield Case("cancel", x=fixed([[1e8, 1.0, -1e8, 0.5]]), axis=1)
        yield Case("overflow", x=fixed([[3e38, 3e38, -3e38], [3e38, 2e38, 1e38]]), axis=1)
        yield Case("infinite", x=fixed([[np.inf, -np.inf], [np.inf, 1.0]]), axis=1)
        yield Case("empty,n=0,d=64", x=f32(0, 64), axis=1)
        for axis in (0, 1):
            yield Case(x=f32(512, 4096), axis=axis, tags=("perf",))


@register
class Sum(Reduce):
    """y = the sum of x along an axis

    x: [...] f32, its rows may have gaps; y: f32, extent 1 along `axis` (a negative one counts from
    the end), or without that axis for keepdims False. The sum of nothing is 0."""

    name = "sum"

    def reference(self, x: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            total = x.astype(np.float64).sum(self.axis, keepdims=self.keepdims)
            return total.astype(np.float32)[...]  # an array also where it is one number

    @staticmethod
    def cases() -> Iterable[Case]:
        yield from Reduce.cases()
        yield Case("of nothing", x=f32(3, 0, 4), axis=1)


@register
class Mean(Reduce):
    """y = the mean of x along an axis

    x: [...] f32, its rows may have gaps and `axis` (a negative one counts from the end) has an
    element or more; y: f32, extent 1 along it, or without that axis for keepdims False."""

    name = "mean"

    def infer(self, x: TensorSpec) -> TensorSpec:
        y = super().infer(x)
        self.require(x.shape[self.axis] > 0, "x", f"not empty along axis {self.axis}", x.shape)
        return y

    def reference(self, x: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            middle = x.astype(np.float64).mean(self.axis, keepdims=self.keepdims)
            return middle.astype(np.float32)[...]


@register
class Cumsum(Op):
    """y[..., j, ...] = the sum of x[..., 0 .. j, ...] along an axis

    x: [...] f32, its rows may have gaps; y like x. A negative axis counts from the end."""

    name, inputs, outputs = "cumsum", ("x",), ("y",)
    inplace = {"y": "x"}
    no_rows = "the axis that is summed along may be that of the rows"
    axis: int

    def infer(self, x: TensorSpec) -> TensorSpec:
        self.require_dtype("x", x, "f32")
        require_dense_rows(self, "x", x)
        axis_of(self, self.axis, x.rank)
        return x.like()

    def reference(self, x: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            return x.astype(np.float64).cumsum(self.axis).astype(np.float32)

    @staticmethod
    def cases() -> Iterable[Case]:
        for case in Reduce.cases():
            if "keepdims" not in case.named:
                yield case
