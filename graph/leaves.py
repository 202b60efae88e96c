"""The three leaves of a graph: inputs, constants and states."""

from __future__ import annotations

from typing import ClassVar

from .dtype import dtype
from .op import Op
from .spec import TensorSpec, shared


class Leaf(Op):
    """A value that comes from outside; `shape` and `dtype` describe it."""

    inputs: ClassVar[tuple[str, ...]] = ()

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = shared(spec)

    def infer(self) -> TensorSpec:
        """The declared spec."""
        return self.spec

    def attributes(self) -> dict[str, object]:
        """Leaves have no attributes; their spec is printed as their type."""
        return {}


class Input(Leaf):
    """Filled by the caller before each run."""

    name = "input"


class Constant(Leaf):
    """A weight, or an array given while building."""

    name = "constant"


class State(Leaf):
    """Memory that outlives a run; each write makes a new version of it."""

    name = "state"


LEAVES: dict[str, type[Leaf]] = {c.name: c for c in (Input, Constant, State)}


def leaf_spec(shape: tuple[int, ...], of: object) -> TensorSpec:
    """A contiguous spec; raises DTypeError when rows are not whole blocks."""
    spec = TensorSpec(tuple(int(n) for n in shape), dtype(of))  # type: ignore[arg-type]
    if spec.dtype.quantized and spec.shape:
        spec.dtype.row_bytes(spec.shape[-1])
    return spec
