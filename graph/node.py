"""Nodes and the values that they produce."""

from __future__ import annotations

from dataclasses import dataclass, field

from .dtype import DType
from .leaves import Leaf
from .op import Op
from .spec import TensorSpec


@dataclass(eq=False, slots=True)
class Node:
    """One op applied to values. id is its place in the graph; where, the line that built it.

    values: the outputs; is_leaf: it is an input, a constant or a state. Nodes are made by the ten
    thousand, which takes three times as long where the class refuses to be written to; still
    nobody may: another node is made with dataclasses.replace."""

    id: int
    op: Op
    inputs: tuple[Value | None, ...]
    specs: tuple[TensorSpec, ...]
    name: str
    where: str = ""
    values: tuple[Value, ...] = field(init=False, repr=False)
    is_leaf: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.values = tuple([_output(self, index) for index in range(len(self.specs))])
        self.is_leaf = isinstance(self.op, Leaf)

    def value(self, index: int = 0) -> Value:
        """The output with this index."""
        return self.values[index]

    def written(self) -> dict[int, Value]:
        """Output index -> the state version that this output overwrites."""
        if not self.op.writes:
            return {}
        pairs = ((out, self.inputs[at]) for out, at in self.op.written_places())
        return {out: value for out, value in pairs if value is not None}

    def output_names(self) -> tuple[str, ...]:
        """The names of the outputs, without those that optional inputs would add."""
        return self.op.output_names(len(self.specs))

    def input_specs(self) -> tuple[TensorSpec | None, ...]:
        """The specs of the inputs, None for absent optional ones."""
        return specs_of(self.inputs)

    def describe(self) -> str:
        """For messages: node number, name and source line."""
        parts = [f"node {self.id}"]
        if self.name:
            parts.append(repr(self.name))
        return " ".join(parts) + (f", {self.where}" if self.where else "")


class Value:
    """One output of a node, by its index. There is one object for each, so that values are told
    apart, and found in sets and mappings, as objects are."""

    __slots__ = ("index", "node")
    node: Node
    index: int

    def __new__(cls, node: Node, index: int = 0) -> Value:
        """The node's own value; another only for an output that the node does not have."""
        return node.values[index] if 0 <= index < len(node.values) else _output(node, index)

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


def _output(node: Node, index: int) -> Value:
    made = object.__new__(Value)
    made.node, made.index = node, index
    return made


def specs_of(values: tuple[Value | None, ...]) -> tuple[TensorSpec | None, ...]:
    """The specs of values, None for absent ones."""
    return tuple([v.node.specs[v.index] if v is not None else None for v in values])
