"""The graph and its builder: one method per registered op."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from html import escape
from types import MethodType
from typing import Any

import numpy as np

from .data import HostTensor, host_tensor
from .dtype import DType, f32
from .errors import GraphError
from .leaves import Constant, Input, Leaf, State, leaf_spec
from .node import Node, Value, specs_of
from .op import OPS, Op, inferred, make_op
from .opmethods import OpMethods
from .printing import to_text
from .signatures import documented
from .spec import TensorSpec

_OWN = os.path.dirname(__file__) + os.sep
_HERE = globals()


def _caller() -> str:
    """file:line of the nearest frame outside this package, for error messages."""
    frame = sys._getframe(1)
    while frame and (frame.f_globals is _HERE or frame.f_code.co_filename.startswith(_OWN)):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return ""
    return f"{_short(frame.f_code.co_filename)}:{frame.f_lineno}"


@cache
def _short(path: str) -> str:
    """A file and its folder."""
    return "/".join(path.replace("\\", "/").split("/")[-2:])


class Graph(OpMethods):
    """A static graph in the making. Ops are methods: `y = g.rms_norm(x, w, eps=1e-6)`.

    Values are immutable; state is single-assignment: every write returns a new version.
    nodes: in the order of building; leaves: inputs, constants and states by name; outputs: by name;
    data: of constants that have it, by name."""

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self.nodes: list[Node] = []
        self.outputs: dict[str, Value] = {}
        self.data: dict[str, HostTensor] = {}
        self.leaves: dict[str, Node] = {}
        self._scope: list[str] = []

    def input(self, name: str, shape: tuple[int, ...], dtype: DType | str = f32) -> Value:
        """A tensor that the caller fills before each run."""
        return self.add_leaf(Input(leaf_spec(shape, dtype)), name)

    def weight(self, name: str, spec: TensorSpec) -> Value:
        """A constant whose data is given when the graph is compiled. The same name, same value."""
        known = self.leaves.get(name)
        if known is not None and known.op.name == "constant" and known.specs[0] == spec:
            return known.value()
        return self.add_leaf(Constant(spec), name)

    def constant(self, data: np.ndarray | HostTensor, name: str | None = None) -> Value:
        """A constant with its data. float64 arrays become float32."""
        tensor = host_tensor(data)
        name = name or self._free_name("constant")
        value = self.add_leaf(Constant(tensor.spec), name)
        self.data[name] = tensor
        return value

    def state(self, name: str, shape: tuple[int, ...], dtype: DType | str = f32) -> Value:
        """Memory that outlives a run, as its first version. Zero when allocated."""
        return self.add_leaf(State(leaf_spec(shape, dtype)), name)

    def output(self, name: str, value: Value) -> Value:
        """Name a value as an output of the graph."""
        if name in self.outputs:
            raise GraphError(f"graph {self.name!r} has an output {name!r} already")
        self._own(value)
        self.outputs[name] = value
        return value

    def scope(self, prefix: str) -> _Scope:
        """A context in which node names get this prefix: `with g.scope("blk.3"): ...`."""
        return _Scope(self._scope, prefix)

    def apply(self, op: Op, inputs: tuple[Value | None, ...], name: str = "") -> Node:
        """Add a node; its specs come from the op's shape rule, whose errors gain the place."""
        where = _caller()
        for value in inputs:
            if value is not None:
                self._own(value)
        op.require_inputs(inputs)
        label = ".".join([*self._scope, name] if name else self._scope)
        try:
            specs = inferred(op, specs_of(inputs))
        except GraphError as error:
            place = f"node {len(self.nodes)}" + (f" {label!r}" if label else "")
            raise type(error)(f"{error} [{place}, {where}]") from None
        node = Node(len(self.nodes), op, inputs, specs, label, where)
        self.nodes.append(node)
        return node

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or name not in OPS:
            known = ", ".join(sorted(OPS)) or "none yet, import riverrun.ops"
            raise AttributeError(f"Graph has no op or attribute {name!r}; ops: {known}")

        return MethodType(_method(OPS[name]), self)  # type: ignore[arg-type]

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *OPS})

    def __repr__(self) -> str:
        inputs = ", ".join(n.name for n in self.nodes if n.op.name == "input")
        outputs = ", ".join(self.outputs)
        return f"<Graph {self.name!r}: {len(self.nodes)} nodes, ({inputs}) -> ({outputs})>"

    def __str__(self) -> str:
        return to_text(self)

    def _repr_html_(self) -> str:
        """The text form, for notebooks."""
        return f'<pre style="max-height: 30em; overflow: auto">{escape(to_text(self))}</pre>'

    def add_leaf(self, op: Leaf, name: str) -> Value:
        """A leaf with this op, under a name that none has yet; raises GraphError for one taken."""
        if name in self.leaves:
            was = self.leaves[name]
            raise GraphError(
                f"graph {self.name!r}: {op.name} {name!r} is taken by {was.op.name} {was.specs[0]}"
            )
        node = Node(len(self.nodes), op, (), (op.spec,), name, _caller())
        self.nodes.append(node)
        self.leaves[name] = node
        return node.value()

    def _free_name(self, stem: str) -> str:
        """A name that no leaf has."""
        number = len(self.leaves)
        while f"{stem}.{number}" in self.leaves:
            number += 1
        return f"{stem}.{number}"

    def adopt(self, node: Node, inputs: tuple[Value | None, ...]) -> Node:
        """A copy of another graph's node on values of this one, for passes."""
        made = Node(len(self.nodes), node.op, inputs, node.specs, node.name, node.where)
        self.nodes.append(made)
        if made.is_leaf:
            self.leaves[made.name] = made
        return made

    def copy(self, name: str | None = None) -> Graph:
        """Another graph of the same nodes, which what is added to this one leaves as it is. name:
        another one than this graph has."""
        made = Graph(self.name if name is None else name)
        made.nodes, made.outputs = list(self.nodes), dict(self.outputs)
        made.data, made.leaves = dict(self.data), dict(self.leaves)
        return made

    def _own(self, value: Value) -> None:
        if not isinstance(value, Value):
            raise GraphError(
                f"an op input should be a Value of this graph, got {type(value).__name__}; "
                "wrap arrays with g.constant(array)"
            )
        node = value.node
        if node.id >= len(self.nodes) or self.nodes[node.id] is not node:
            raise GraphError(f"{value!r} belongs to another graph than {self.name!r}")


@cache
def _method(cls: type[Op]) -> Callable[..., Any]:
    """The builder's method for an op."""

    def call(graph: Graph, /, *args: Value | None, name: str = "", **rest: Any) -> Any:
        inputs, attributes = bind_arguments(cls, args, rest)
        node = graph.apply(make_op(cls.name, attributes), inputs, name)
        return node.values if len(node.values) > 1 else node.values[0]

    return documented(call, cls)


class _Scope:
    """Pushes a name prefix for the length of a with block."""

    def __init__(self, stack: list[str], prefix: str) -> None:
        self.stack, self.prefix = stack, prefix

    def __enter__(self) -> None:
        self.stack.append(self.prefix)

    def __exit__(self, *exc: object) -> None:
        self.stack.pop()


def bind_arguments(
    cls: type[Op], args: tuple[Value | None, ...], rest: Mapping[str, Any]
) -> tuple[tuple[Value | None, ...], dict[str, Any]]:
    """Split a builder call into op inputs (in order) and attributes.

    Raises GraphError for missing, doubled or surplus inputs."""
    attributes = dict(rest)
    if cls.inputs and cls.inputs[-1].startswith("*"):
        if any(a is None for a in args):
            raise GraphError(f"{cls.name}: input {args.index(None)} is missing; got None")
        return args, attributes
    names, inputs = cls.input_names(), list(args)
    if len(args) > len(names):
        raise GraphError(f"{cls.name}: takes {', '.join(cls.inputs)}; got {len(args)} inputs")
    for name in names[: len(args)] if attributes else ():
        if name in attributes:
            raise GraphError(f"{cls.name}: input {name!r} given twice")
    inputs += [attributes.pop(name, None) for name in names[len(args) :]]
    for at, value in enumerate(inputs):
        if value is None and not cls.inputs[at].endswith("?"):
            raise GraphError(f"{cls.name}: input {names[at]!r} is missing; it takes {cls.inputs}")
    return tuple(inputs), attributes
