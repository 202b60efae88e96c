"""Another shape for the same elements, without moving them."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from ..graph.case import Case, f32, rand
from ..graph.op import Cost, Op, register
from ..graph.spec import MAX_RANK, TensorSpec


def reshaped_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], new: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Strides that show the memory of (shape, strides) as `new`; None when there are none.

    Both shapes hold the same number of elements, not 0."""
    runs: list[tuple[int, int]] = []  # extent, stride of axes that act as one, last axis first
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent == 1:
            continue
        if runs and stride == runs[-1][0] * runs[-1][1]:
            runs[-1] = (runs[-1][0] * extent, runs[-1][1])
        else:
            runs.append((extent, stride))
    found: list[int] = []
    left, step = 1, strides[-1] if strides else 0
    rest = iter(runs)
    for extent in reversed(new):
        if left == 1 and extent != 1:
            left, step = next(rest)
        if left % extent:
            return None
        found.append(step)
        left, step = left // extent, step * extent
    return tuple(reversed(found))


@register
class Reshape(Op):
    """y = x with its elements, in row-major order, under another shape

    x: any dtype; y: the same memory with `shape`, of which one extent may be -1 (what is left).
    Blocks of a block type stay whole. Raises ShapeError when x has gaps or permuted axes between
    which the new shape would run."""

    name, inputs, outputs = "reshape", ("x",), ("y",)
    view = True
    shape: tuple[int, ...]

    def infer(self, x: TensorSpec) -> TensorSpec:
        shape = self._shape_of(x)
        block = x.dtype.block
        whole = block == 1 or (len(shape) > 0 and shape[-1] % block == 0)
        self.require(whole, "shape", f"rows of whole blocks of {block} for {x.dtype}", shape)
        if x.contiguous:
            return x.like(shape)
        # A block is the element here: strides of block types count blocks on the last axis.
        old, new = ((*s[:-1], s[-1] // block) if s else s for s in (x.shape, shape))
        strides = reshaped_strides(old, x.byte_strides, new)
        if strides is None:
            want = f"laid out so that {shape} is a view of it"
            raise self.fail("x", want, x, "make it contiguous with cont")
        return TensorSpec(shape, x.dtype, strides)

    def _shape_of(self, x: TensorSpec) -> tuple[int, ...]:
        shape = self.shape
        extents = all(n >= -1 for n in shape) and shape.count(-1) <= 1
        self.require_attr(extents, "shape", "extents, one of which may be -1")
        self.require_attr(len(shape) <= MAX_RANK, "shape", f"at most {MAX_RANK} extents")
        known = math.prod(n for n in shape if n != -1)
        if -1 in shape:
            fits = known > 0 and x.size % known == 0
            self.require(fits, "x", f"a number of elements divisible into {shape}", x.shape)
            return tuple(x.size // known if n == -1 else n for n in shape)
        self.require(known == x.size, "x", f"{known} elements for {shape}", x.shape)
        return shape

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(self._shape_of(TensorSpec(x.shape)))

    def cost(self, x: TensorSpec) -> Cost:
        return Cost(0, 0, 0)

    @staticmethod
    def cases() -> Iterable[Case]:
        for old, new in (
            ((4, 6), (24,)),
            ((4, 6), (2, 2, -1)),
            ((2, 3, 4), (6, -1)),
            ((1,), ()),
            ((), (1, 1)),
            ((0, 6), (0, 2, 3)),
            ((0, 6), (-1, 3)),
        ):
            yield Case(x=f32(*old), shape=new)
        for of in ("f16", "i32"):
            yield Case(x=rand(of, 4, 6, lo=-9, hi=9), shape=(3, 8))
        yield Case(x=rand("q8_0", 4, 64), shape=(2, -1))
        yield Case("gap,split heads", x=f32(3, 24, gap=8), shape=(3, 4, 6))
        yield Case("gap,split tokens", x=f32(6, 5, gap=3), shape=(2, 3, 5))
        yield Case("gap,ones", x=f32(3, 4, gap=2), shape=(1, 3, 1, 4, 1))
