"""Runs an op's cases on a backend and holds the results against the numpy reference."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..graph import Graph, HostTensor, Node, TensorSpec, Value
from ..graph.case import BoundCase
from ..graph.codec import decode, encode
from .base import Backend, Pools
from .tolerance import bound


@dataclass(frozen=True)
class CaseResult:
    """status: passed, failed or refused; why: the first thing wrong, or the refusal's reason."""

    id: str
    status: str
    why: str = ""
    nmse: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Built:
    """A case as a graph: the node under test, and what to bind."""

    graph: Graph
    node: Node
    inputs: dict[str, np.ndarray]
    states: dict[str, HostTensor]


def build(case: BoundCase) -> Built:
    """One node with its leaves. States, constants and gaps become what they are in a model."""
    g = Graph(case.id)
    cls = type(case.op)
    names = [n.strip("?*") for n in cls.inputs]
    values: list[Value | None] = []
    inputs: dict[str, np.ndarray] = {}
    states: dict[str, HostTensor] = {}
    for i, tensor in enumerate(case.draw()):
        if tensor is None:
            values.append(None)
            continue
        kind = names[min(i, len(names) - 1)]
        name = f"{kind}.{i}" if i >= len(names) or cls.inputs[-1].startswith("*") else kind
        strides = case.strides(i)
        if kind in cls.writes.values():
            values.append(g.state(name, tensor.spec.shape, tensor.spec.dtype))
            states[name] = tensor
        elif strides is not None:
            values.append(_gapped(g, name, tensor, strides, inputs))
        elif kind in cls.constants or tensor.spec.dtype.quantized:
            values.append(g.constant(tensor, name))
        else:
            values.append(g.input(name, tensor.spec.shape, tensor.spec.dtype))
            inputs[name] = tensor.raw.view(tensor.spec.dtype.storage).reshape(tensor.spec.shape)
    node = g.apply(case.op, tuple(values))
    for i, label in enumerate(cls.outputs):
        g.output(label, node.value(i))
    return Built(g, node, inputs, states)


def _gapped(
    g: Graph, name: str, tensor: HostTensor, strides: tuple[int, ...], inputs: dict[str, np.ndarray]
) -> Value:
    """The tensor as a view into a wider input whose other elements are NaN."""
    spec = tensor.spec
    width = strides[-2] // spec.dtype.nbytes
    wide = np.full((*spec.shape[:-1], width), np.nan, spec.dtype.storage)
    gap = width - spec.shape[-1]
    wide[..., gap:] = tensor.raw.view(spec.dtype.storage).reshape(spec.shape)
    inputs[name] = wide
    value = g.input(name, wide.shape, spec.dtype)
    return g.view(value, axis=len(wide.shape) - 1, start=gap, stop=width)


def expected(case: BoundCase, specs: tuple[TensorSpec, ...]) -> list[np.ndarray]:
    """The reference's outputs, rounded to their dtypes."""
    args = [t.decoded() if t is not None else None for t in case.draw()]
    out = case.op.reference(*args)
    out = out if isinstance(out, tuple) else (out,)
    return [decode(s.dtype, encode(s.dtype, a), s.shape) for a, s in zip(out, specs, strict=True)]


def run_case(backend: Backend, case: BoundCase, kind: str = "step") -> CaseResult:
    """Run one case. Memory that the node should fill is all ones (NaN) before."""
    built = build(case)
    support = backend.supports(built.node)
    if not support.ok:
        return CaseResult(case.id, "refused", support.why)
    got = execute(backend, built, kind)
    limit = bound(built.node)
    errors: dict[str, float] = {}
    for label, spec, want in zip(
        type(case.op).outputs, built.node.specs, expected(case, built.node.specs), strict=True
    ):
        have = decode(spec.dtype, got[label], spec.shape)
        why = compare(have, want, limit, errors, label)
        if not why and label in case.op.writes:
            why = _untouched(have, want, built.states[case.op.writes[label]])
        if why:
            return CaseResult(case.id, "failed", f"{label}: {why}", errors)
    return CaseResult(case.id, "passed", "", errors)


def execute(
    backend: Backend, built: Built, kind: str = "step", rows: int | None = None
) -> dict[str, np.ndarray]:
    """Compile, bind, run once; copies of the outputs by name."""
    plan = backend.compile(built.graph, kind)
    pools = Pools(plan.states)
    for name, tensor in built.states.items():
        pools.states[name][...] = tensor.raw
    pools.scratch(plan.memory.arena_bytes + (1 << 16))[...] = 0xFF
    bound_plan = plan.bind(plan.own_weights(), pools)
    for name, array in built.inputs.items():
        bound_plan.inputs[name][...] = array
    bound_plan.run(rows)
    for name, array in built.inputs.items():
        if not np.array_equal(bound_plan.inputs[name], array, equal_nan=array.dtype.kind == "f"):
            raise AssertionError(f"{built.graph.name}: the run changed its input {name!r}")
    return {k: np.ascontiguousarray(v) for k, v in bound_plan.outputs.items()}


def compare(
    have: np.ndarray, want: np.ndarray, limit: float, errors: dict[str, float], label: str
) -> str:
    """What is wrong with a result, "" when nothing is; notes its NMSE in errors."""
    if have.shape != want.shape:
        return f"shape {have.shape}, expected {want.shape}"
    if want.dtype.kind in "iu":
        wrong = np.flatnonzero(have.ravel() != want.ravel())
        return f"{wrong.size} values differ, first at {wrong[0]}" if wrong.size else ""
    a, b = have.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(np.isnan(a), np.isnan(b)) or not np.array_equal(a[~finite], b[~finite]):
        same = np.array_equal(np.isnan(a), np.isnan(b))
        if not same or not np.array_equal(a[np.isinf(b)], b[np.isinf(b)]):
            return "NaN or infinity where the reference has none, or the other way round"
    if not np.isfinite(a[finite]).all():
        return "infinity where the reference is finite"
    power = float((b[finite] ** 2).sum())
    error = float(((a[finite] - b[finite]) ** 2).sum())
    nmse = error / power if power > 0 else error
    errors[label] = nmse
    return f"NMSE {nmse:.3g} is over {limit:.3g}" if nmse > limit else ""


def _untouched(have: np.ndarray, want: np.ndarray, before: HostTensor) -> str:
    """Rows (and planes) that the reference left alone must be left alone bit for bit."""
    was = before.decoded()
    axes = tuple(range(2 if was.ndim == 3 else 1, was.ndim))
    same = (want == was).all(axis=axes)
    if np.array_equal(have[same], was[same]):
        return ""
    return "a state row that should have stayed as it was has changed"
