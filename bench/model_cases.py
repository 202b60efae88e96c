"""Cases with the very shapes, types and attributes of a model's steps; their values are random.

Nothing is read from the file but its header: weights are drawn and encoded in the file's types."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..graph import HostTensor, Node, Op, TensorSpec, Value
from ..graph.case import BoundCase, Declared, Fixed, Rand, op_cases
from ..graph.dtype import i32
from ..models import load_file
from ..models.step import PAGE, Capacity, StepShape

# (tokens, plan kind, tokens whose logits are wanted)
STEPS = ((1, "step", 1), (4, "step", 4), (64, "prefill", 1))
CONTEXT = 4 * PAGE
BEFORE = PAGE + 44  # tokens that the sequence holds already, in two pages
_DISTINCT = 1 << 20


@dataclass(frozen=True)
class Tiled(Rand):
    """Random values of a large tensor, whose rows repeat after about a million elements."""

    def draw(self, rng: np.random.Generator) -> HostTensor:
        """The values, encoded."""
        rows, width = math.prod(self.shape[:-1]), self.shape[-1]
        few = min(rows, max(1, _DISTINCT // max(1, width)))
        drawn = Rand((few, width), self.dtype, self.lo, self.hi, self.kind).draw(rng)
        raw = np.tile(drawn.raw, -(-rows // max(1, few)))
        spec = TensorSpec(self.shape, self.dtype)
        return HostTensor(spec, raw[: spec.nbytes])


@dataclass(frozen=True)
class ModelCase(BoundCase):
    """A node of a model's step as a case; kind: that of the plans it stands in."""

    kind: str = "step"
    byte_strides: tuple[tuple[int, ...] | None, ...] = ()

    def strides(self, index: int) -> tuple[int, ...] | None:
        """The byte strides that the input has in the model."""
        return self.byte_strides[index]


def model_cases(path: Path) -> list[ModelCase]:
    """The different nodes of a model's steps of 1 and 4 tokens and its prompt pass of 64.

    Raises ModelError for a file that cannot be run."""
    file = load_file(path)
    found: dict[tuple[object, ...], ModelCase] = {}
    capacity = Capacity(CONTEXT // PAGE, CONTEXT // PAGE, 1)
    for n, kind, wanted in STEPS:
        graph = file.arch.build(StepShape(n, 1, wanted), capacity, file.specs)
        inputs = step_inputs(n, wanted, file.arch.hp.n_vocab)
        for node in graph.nodes:
            if node.is_leaf or node.op.view:
                continue
            key = (kind, node.op, *((s, s and s.strides) for s in node.input_specs()))
            if key not in found:
                found[key] = _case(node, n, kind, inputs)
    return list(found.values())


def step_inputs(n: int, wanted: int, n_vocab: int) -> dict[str, np.ndarray]:
    """Valid data for the inputs of a step of n tokens of one sequence, in scattered pages."""
    rng = np.random.default_rng(n)
    table = rng.permutation(CONTEXT // PAGE)
    positions = np.arange(BEFORE, BEFORE + n)
    return {
        "tokens": rng.integers(0, n_vocab, n),
        "positions": positions,
        "seq_offsets": np.array([0, n]),
        "kv_rows": table[positions // PAGE] * PAGE + positions % PAGE,
        "block_table": table[None],
        "state_rows": np.array([0]),
        "out_rows": np.arange(n - wanted, n),
    }


def _case(node: Node, n: int, kind: str, inputs: dict[str, np.ndarray]) -> ModelCase:
    names = [d.strip("?*") for d in node.op.inputs]
    declared: list[Declared | None] = []
    strides: list[tuple[int, ...] | None] = []
    shapes: list[str] = []
    for i, value in enumerate(node.inputs):
        name = names[min(i, len(names) - 1)]
        declared.append(None if value is None else _declared(node, name, value, inputs))
        strides.append(value.spec.strides if value is not None else None)
        if value is not None:
            shape = "x".join(map(str, value.shape))
            gaps = ":gaps" if value.spec.strides else ""
            shapes.append(f"{name}={shape}:{value.dtype.name}{gaps}")
    given = (f"{k}={v}" for k, v in node.op.attributes().items())
    label = ",".join([kind, f"tokens={n}", *shapes, *given])
    case_id = f"{node.op.name}[{label}]"
    return ModelCase(case_id, node.op, tuple(declared), ("model", "perf"), kind, tuple(strides))


def _declared(node: Node, name: str, value: Value, inputs: dict[str, np.ndarray]) -> Declared:
    """Values that mean something where they go."""
    leaf = value.node
    if leaf.op.name == "input" and leaf.name in inputs:
        return Fixed(inputs[leaf.name], value.dtype)
    if value.dtype == i32:  # indices that the step computes choose among the rows of a weight
        tables = (v for v in node.inputs if v is not None and v.node.op.name == "constant")
        return Rand(value.shape, i32, 0, min((v.shape[0] for v in tables), default=1))
    low, high, kind = _range(type(node.op), name)
    return Tiled(value.shape, value.dtype, low, high, kind)


def _range(cls: type[Op], name: str) -> tuple[float, float, str]:
    """From where to where an input of an op reaches, by the first case that draws it."""
    for drawn in _drawn(cls, name):
        return drawn.lo, drawn.hi, drawn.kind
    return -1.0, 1.0, "uniform"


def _drawn(cls: type[Op], name: str) -> Iterator[Rand]:
    names = [d.strip("?*") for d in cls.inputs]
    for case in op_cases(cls):
        for i, given in enumerate(case.inputs):
            if isinstance(given, Rand) and names[min(i, len(names) - 1)] == name:
                yield replace(given, gap=0)
