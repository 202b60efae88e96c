"""Views: a slice along one axis, and axes in another order."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..graph.case import Case, f32, rand
from ..graph.op import Cost, Op, register
from ..graph.spec import TensorSpec


@register
class View(Op):
    """y = x[..., start:stop, ...] along one axis

    x: any dtype; y: the same memory, extent stop - start along `axis` (a negative one counts from
    the end), which for block types is not the last one."""

    name, inputs, outputs = "view", ("x",), ("y",)
    view = True
    axis: int
    start: int
    stop: int

    def _axis_of(self, rank: int) -> int:
        self.require_attr(-rank <= self.axis < rank, "axis", f"an axis of rank {rank}")
        return self.axis % rank

    def infer(self, x: TensorSpec) -> TensorSpec:
        axis = self._axis_of(x.rank)
        n = x.shape[axis]
        self.require_attr(0 <= self.start <= n, "start", f"from 0 to {n}, the extent of x")
        self.require_attr(self.start <= self.stop <= n, "stop", f"from start {self.start} to {n}")
        before_last = axis < x.rank - 1 or not x.dtype.quantized
        self.require_attr(before_last, "axis", f"before the last one for blocks of {x.dtype}")
        shape = (*x.shape[:axis], self.stop - self.start, *x.shape[axis + 1 :])
        return TensorSpec(shape, x.dtype, x.byte_strides)

    def view_offset(self, x: TensorSpec) -> int:
        return self.start * x.byte_strides[self._axis_of(x.rank)]

    def reference(self, x: np.ndarray) -> np.ndarray:
        where = [slice(None)] * x.ndim
        where[self._axis_of(x.ndim)] = slice(self.start, self.stop)
        return x[tuple(where)]

    def cost(self, x: TensorSpec) -> Cost:
        return Cost(0, 0, 0)

    @staticmethod
    def cases() -> Iterable[Case]:
        for axis, start, stop in ((0, 1, 3), (1, 2, 5), (2, 0, 4), (-1, 3, 7), (-2, 5, 6)):
            yield Case(x=f32(4, 6, 7), axis=axis, start=start, stop=stop)
        for axis, start, stop in ((0, 0, 4), (0, 4, 4), (1, 3, 3)):
            yield Case(x=f32(4, 6), axis=axis, start=start, stop=stop)
        yield Case(x=f32(1), axis=0, start=0, stop=1)
        yield Case(x=f32(0, 6), axis=1, start=2, stop=4)
        for of in ("f16", "i32", "bf16"):
            yield Case(x=rand(of, 5, 8, lo=-9, hi=9), axis=1, start=1, stop=4)
        yield Case(x=rand("q8_0", 5, 64), axis=0, start=1, stop=4)
        yield Case(x=rand("q8_0", 2, 5, 64), axis=1, start=1, stop=4)
        yield Case("gap,columns", x=f32(4, 6, gap=3), axis=1, start=2, stop=5)
        yield Case("gap,rows", x=f32(4, 6, gap=3), axis=0, start=2, stop=3)


@register
class Permute(Op):
    """y[i_axes[0], i_axes[1], ...] = x[i_0, i_1, ...]: axis j of y is axis axes[j] of x

    x: any dtype; y: the same memory. The last axis of a block type stays last."""

    name, inputs, outputs = "permute", ("x",), ("y",)
    view = True
    axes: tuple[int, ...]

    def infer(self, x: TensorSpec) -> TensorSpec:
        every = sorted(self.axes) == list(range(x.rank))
        self.require_attr(every, "axes", f"the axes 0 to {x.rank - 1} of x in some order")
        if x.dtype.quantized:
            last = self.axes[-1] == x.rank - 1
            self.require_attr(last, "axes", f"with the last axis last for blocks of {x.dtype}")
        shape = tuple(x.shape[a] for a in self.axes)
        return TensorSpec(shape, x.dtype, tuple(x.byte_strides[a] for a in self.axes))

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x.transpose(self.axes)

    def cost(self, x: TensorSpec) -> Cost:
        return Cost(0, 0, 0)

    @staticmethod
    def cases() -> Iterable[Case]:
        for axes in ((0, 1, 2), (1, 0, 2), (2, 0, 1), (0, 2, 1)):
            yield Case(x=f32(3, 4, 5), axes=axes)
        yield Case(x=f32(2, 3, 4, 5), axes=(3, 1, 0, 2))
        yield Case(x=f32(1, 7), axes=(1, 0))
        yield Case(x=f32(0, 7), axes=(1, 0))
        yield Case(x=f32(3), axes=(0,))
        yield Case(x=rand("f16", 3, 4, 6), axes=(1, 0, 2))
        yield Case(x=rand("q8_0", 3, 2, 32), axes=(1, 0, 2))
        yield Case("gap", x=f32(3, 4, 5, gap=2), axes=(1, 0, 2))


@register
class Transpose(Op):
    """y[..., i, ..., j, ...] = x[..., j, ..., i, ...]: axes a and b of x change places

    x: any dtype; y: the same memory. a, b: negative ones count from the end. The last axis of a
    block type stays last."""

    name, inputs, outputs = "transpose", ("x",), ("y",)
    view = True
    a: int
    b: int

    def _axes(self, rank: int) -> tuple[int, ...]:
        for attr, axis in (("a", self.a), ("b", self.b)):
            self.require_attr(-rank <= axis < rank, attr, f"an axis of rank {rank}")
        axes = list(range(rank))
        axes[self.a], axes[self.b] = axes[self.b], axes[self.a]
        return tuple(axes)

    def infer(self, x: TensorSpec) -> TensorSpec:
        axes = self._axes(x.rank)
        if x.dtype.quantized:
            last, attr = axes[-1] == x.rank - 1, "b" if self.b % x.rank == x.rank - 1 else "a"
            self.require_attr(last, attr, f"before the last axis for blocks of {x.dtype}")
        shape = tuple(x.shape[axis] for axis in axes)
        return TensorSpec(shape, x.dtype, tuple(x.byte_strides[axis] for axis in axes))

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x.swapaxes(self.a, self.b)

    def cost(self, x: TensorSpec) -> Cost:
        return Cost(0, 0, 0)

    @staticmethod
    def cases() -> Iterable[Case]:
        for a, b in ((0, 1), (1, 2), (0, 2), (-1, 0), (1, -2), (2, 2)):
            yield Case(x=f32(3, 4, 5), a=a, b=b)
        yield Case(x=f32(2, 3, 4, 5), a=-2, b=1)
        yield Case(x=f32(1, 7), a=0, b=1)
        yield Case(x=f32(0, 7), a=0, b=1)
        yield Case(x=f32(3), a=0, b=0)
        yield Case(x=rand("f16", 3, 4, 6), a=0, b=1)
        yield Case(x=rand("q8_0", 3, 2, 32), a=0, b=1)
        yield Case("gap", x=f32(3, 4, 5, gap=2), a=0, b=1)
