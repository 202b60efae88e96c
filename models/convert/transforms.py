"""How a tensor of a GGUF file comes from one or several of a checkpoint.

A transform says what shape it gives and yields the values in pieces along the first axis, so that
no more than a piece is in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .checkpoint import Array, Shape, Source


class Transform(ABC):
    """A rule for values and shapes."""

    @abstractmethod
    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """The result's shape. Raises ValueError, in words, for shapes that do not fit."""

    @abstractmethod
    def pieces(self, sources: Sequence[Source]) -> Iterator[Array]:
        """The values, f32, in pieces along the first axis of the result."""


@dataclass(frozen=True)
class Each(Transform):
    """Every value by itself, through `change` where there is one."""

    change: Callable[[Array], Array] | None = None

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """As it was."""
        return shapes[0]

    def pieces(self, sources: Sequence[Source]) -> Iterator[Array]:
        """Block by block."""
        (source,) = sources
        for start, stop in source.blocks():
            block = source.floats(start, stop)
            yield self.change(block) if self.change else block


@dataclass(frozen=True)
class Whole(Transform):
    """A tensor that is rearranged as a whole. change: applied to its values, f32; to: the shape of
    the result from that of the source, where it is another."""

    change: Callable[[Array], Array]
    to: Callable[[Shape], Shape] | None = None

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """As it was, or what `to` says."""
        return self.to(shapes[0]) if self.to else shapes[0]

    def pieces(self, sources: Sequence[Source]) -> Iterator[Array]:
        """One piece."""
        (source,) = sources
        yield self.change(source.floats())


@dataclass(frozen=True)
class Rows(Transform):
    """Part `index` of `count` equal parts of an axis. axis: 0, or 1 of a stack of matrices."""

    index: int
    count: int
    axis: int = 0

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """That axis is shorter."""
        shape = shapes[0]
        if len(shape) <= self.axis or shape[self.axis] % self.count:
            raise ValueError(f"axis {self.axis} should divide into {self.count} parts")
        part = shape[self.axis] // self.count
        return (*shape[: self.axis], part, *shape[self.axis + 1 :])

    def pieces(self, sources: Sequence[Source]) -> Iterator[Array]:
        """The rows; of a stack one matrix at a time."""
        (source,) = sources
        part = source.shape[self.axis] // self.count
        start = self.index * part
        if self.axis == 0:
            yield source.floats(start, start + part)
            return
        for i in range(source.rows):
            yield source.floats(i, i + 1)[:, start : start + part]


@dataclass(frozen=True)
class Stack(Transform):
    """One matrix after another: [n, *shape] of n tensors, each changed as `of` says."""

    of: Transform = Each()

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """The shape of all of them, behind their number."""
        first = shapes[0]
        other = next((s for s in shapes if s != first), None)
        if other is not None:
            raise ValueError(f"all should have shape {first}, got {other}")
        return (len(shapes), *self.of.shape([first]))

    def pieces(self, sources: Sequence[Source]) -> Iterator[Array]:
        """Tensor by tensor."""
        for source in sources:
            yield from (piece[None] for piece in self._whole(source))

    def _whole(self, source: Source) -> Iterator[Array]:
        yield np.concatenate(list(self.of.pieces([source])))


SAME = Each()
# Norms that are published as the distance of their weight from 1.
PLUS_ONE = Each(lambda w: w + np.float32(1))


def squeezed(shape: Shape) -> Shape:
    """Without axes of length 1, the first one aside."""
    return (*shape[:1], *(n for n in shape[1:] if n != 1))


# [C, 1, W] of a convolution with one filter a channel.
SQUEEZE = Whole(lambda x: x.reshape(squeezed(x.shape)), squeezed)
# [1, n] as [n].
FLAT = Whole(lambda x: x.reshape(-1), lambda shape: (int(np.prod(shape)),))


def swapped(x: Array) -> Array:
    """With the last two axes exchanged."""
    return np.ascontiguousarray(np.swapaxes(x, -1, -2))


# [..., in, out] as [..., out, in].
TRANSPOSE = Whole(swapped, lambda s: (*s[:-2], s[-1], s[-2]))


def interleaved(n_head: int) -> Whole:
    """Rows of `n_head` heads so that those that a rotation pairs, i and i + dim/2 of a checkpoint,
    lie side by side."""

    def change(x: Array) -> Array:
        parts = x.reshape(n_head, 2, x.shape[0] // n_head // 2, *x.shape[1:])
        return parts.swapaxes(1, 2).reshape(x.shape)

    return Whole(change)


def regrouped(n_group: int, n_each: int, axis: int = 0, start: int = 0) -> Callable[[Array], Array]:
    """From `start` on, an axis of n_group groups of n_each members, [group, member, ...], as
    [member, group, ...]."""

    def change(x: Array) -> Array:
        head, tail = np.split(x, [start], axis)
        width = tail.shape[axis] // (n_group * n_each)
        split = (*tail.shape[:axis], n_group, n_each, width, *tail.shape[axis + 1 :])
        turned = tail.reshape(split).swapaxes(axis, axis + 1).reshape(tail.shape)
        return np.concatenate([head, turned], axis)

    return change
