"""Nodes and the values that they produce."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .dtype import DType
from .leaves import Leaf
from .op import Op
from .spec import TensorSpec


@dataclass(frozen=True, eq=False)
class Node:
    """One op applied to values. id is its place in the graph; where, the line that built it."""

    id: int
    op: Op
    inputs: tuple[Value | None, ...]
    specs: tuple[TensorSpec, ...]
    name: str
    where: str = ""

    @property
    def is_leaf(self) -> bool:
        """True for inputs, constants and states."""
        return isinstance(self.op, Leaf)

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """The outputs."""
        return tuple(Value(self, index) for index in range(len(self.specs)))

    def value(self, index: int = 0) -> Value:
        """The output with this index."""
        return self.values[index]

    def written(self) -> dict[int, Value]:
        """Output index -> the state version that this output overwrites."""
        if not self.op.writes:
            return {}
        names = [n.strip("?*") for n in self.op.inputs]
        found = {}
        for out, source in self.op.writes.items():
            value = self.inputs[names.index(source)]
            if value is not None:
                found[self.op.output_names().index(out)] = value
        return found

    def output_names(self) -> tuple[str, ...]:
        """The names of the outputs, without those that optional inputs would add."""
        return self.op.output_names(len(self.specs))

    def input_specs(self) -> tuple[TensorSpec | None, ...]:
        """The specs of the inputs, None for absent optional ones."""
        return tuple(v.spec if v is not None else None for v in self.inputs)

    def describe(self) -> str:
        """For messages: node number, name and source line."""
        parts = [f"node {self.id}"]
        if self.name:
            parts.append(repr(self.name))
        return " ".join(parts) + (f", {self.where}" if self.where else "")


@dataclass(frozen=True)
class Value:
    """One output of a node."""

    node: Node
    index: int = 0

    @property
    def spec(self) -> TensorSpec:
        """Shape, dtype and strides."""
        return self.node.specs[self.index]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, row-major."""
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        """The element or block type."""
        return self.spec.dtype

    def __repr__(self) -> str:
        tail = f".{self.index}" if len(self.node.specs) > 1 else ""
        return f"%{self.node.id}{tail}:{self.spec}"
