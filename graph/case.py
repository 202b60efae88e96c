"""Cases: concrete inputs and attributes of an op, for tests and benchmarks.

A case declares its inputs; the harness draws them from a generator seeded by the case's id, so
the id is the reproduction."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from .codec import encode
from .data import HostTensor
from .dtype import DType, dtype
from .op import Op, make_op
from .spec import TensorSpec, contiguous_strides


@dataclass(frozen=True)
class Rand:
    """Random values: uniform in [lo, hi), or rows of unit length for kind "unit".

    gap > 0 asks for rows that lie gap elements apart in memory (strided along the last axis's
    rows), which a view into a wider tensor has."""

    shape: tuple[int, ...]
    dtype: DType
    lo: float = -1.0
    hi: float = 1.0
    kind: str = "uniform"
    gap: int = 0

    def draw(self, rng: np.random.Generator) -> HostTensor:
        """The values, encoded; contiguous (the harness applies `gap` in the graph)."""
        values: np.ndarray
        if self.dtype.numpy is not None and self.dtype.numpy.kind in "iu":
            values = rng.integers(int(self.lo), int(self.hi), self.shape)
        else:
            values = rng.uniform(self.lo, self.hi, self.shape)
        if self.kind == "unit":
            values = values / np.sqrt((values * values).sum(-1, keepdims=True) + 1e-6)
        raw = np.ascontiguousarray(encode(self.dtype, values)).reshape(-1).view(np.uint8)
        return HostTensor(TensorSpec(self.shape, self.dtype), raw)


@dataclass(frozen=True)
class Fixed:
    """Given values, for indices, offsets and edge values."""

    values: np.ndarray
    dtype: DType

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the values."""
        return self.values.shape

    def draw(self, rng: np.random.Generator) -> HostTensor:
        """The values, encoded."""
        raw = np.ascontiguousarray(encode(self.dtype, self.values)).reshape(-1).view(np.uint8)
        return HostTensor(TensorSpec(self.values.shape, self.dtype), raw)


Declared = Rand | Fixed


def f32(*shape: int, lo: float = -1.0, hi: float = 1.0, gap: int = 0) -> Rand:
    """Uniform float32."""
    return Rand(shape, dtype("f32"), lo, hi, gap=gap)


def unit(*shape: int, gap: int = 0) -> Rand:
    """float32 rows of unit length, like normalised queries and keys."""
    return Rand(shape, dtype("f32"), kind="unit", gap=gap)


def rand(of: str, *shape: int, lo: float = -1.0, hi: float = 1.0) -> Rand:
    """Uniform values of any dtype, encoded."""
    return Rand(shape, dtype(of), lo, hi)


def ints(*values: int) -> Fixed:
    """A rank-1 i32 tensor."""
    return Fixed(np.array(values, np.int32), dtype("i32"))


def fixed(values: Any, of: str = "f32") -> Fixed:
    """Given values of any rank."""
    return Fixed(np.asarray(values), dtype(of))


class Case:
    """One case: `Case("n=4,d=256", x=f32(4, 256), w=f32(256), eps=1e-6, tags=("perf",))`.

    The label, unique within the op, may be left out: then it is made of shapes and attributes.
    Keyword arguments named like inputs declare them (a tuple for a variadic one), the rest are
    attributes."""

    def __init__(self, label: str = "", tags: tuple[str, ...] = (), **named: Any) -> None:
        self.label, self.tags, self.named = label, tags, named


@dataclass(frozen=True)
class BoundCase:
    """A case of a given op; inputs in op order, None for absent optional ones."""

    id: str
    op: Op
    inputs: tuple[Declared | None, ...]
    tags: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """The name of each input; a variadic one gives its name to several."""
        return self.op.input_names(len(self.inputs))

    def draw(self) -> list[HostTensor | None]:
        """Fresh inputs; the same id gives the same values."""
        rng = np.random.default_rng(zlib.crc32(self.id.encode()))
        return [d.draw(rng) if d is not None else None for d in self.inputs]

    def strides(self, index: int) -> tuple[int, ...] | None:
        """Byte strides that input `index` should have, None for contiguous."""
        declared = self.inputs[index]
        if not isinstance(declared, Rand) or not declared.gap or len(declared.shape) < 2:
            return None
        wide = (*declared.shape[:-1], declared.shape[-1] + declared.gap)
        return contiguous_strides(wide, declared.dtype)


def _shape(declared: Declared) -> str:
    dims = "x".join(map(str, declared.shape))
    return dims if declared.dtype.name == "f32" else f"{dims}:{declared.dtype.name}"


def bind_case(cls: type[Op], case: Case) -> BoundCase:
    """Split a case's arguments into inputs and attributes and give it its id."""
    named = dict(case.named)
    inputs: list[Declared | None] = []
    shapes: list[str] = []
    for declared in cls.inputs:
        name = declared.strip("?*")
        if name not in named and not declared.endswith("?"):
            raise ValueError(f"a case of {cls.name} has no input {name!r}")
        given = named.pop(name, None)
        group = list(given) if declared.startswith("*") else [given]
        inputs += group
        shapes += [f"{name}={_shape(d)}" for d in group if d is not None]
    label = case.label or ",".join([*shapes, *(f"{k}={v}" for k, v in named.items())])
    return BoundCase(f"{cls.name}[{label}]", make_op(cls.name, named), tuple(inputs), case.tags)


def op_cases(cls: type[Op]) -> list[BoundCase]:
    """All cases of an op. Raises ValueError when two have the same id."""
    bound = [bind_case(cls, c) for c in cls.cases()]
    ids = [b.id for b in bound]
    for i in ids:
        if ids.count(i) > 1:
            raise ValueError(f"two cases are called {i}")
    return bound
