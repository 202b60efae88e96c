"""Runs an op's cases on a backend and holds the results against the numpy reference.

A case's id seeds its values, so the id is the reproduction. Whatever goes wrong in a run is that
case's result, never the end of the suite."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..graph import Graph, HostTensor, Node, TensorSpec, Value
from ..graph.case import BoundCase
from ..graph.codec import decode, encode
from ..graph.errors import GraphError
from .base import Backend, BoundPlan, Plan, allocating
from .guard import UNWRITTEN, Guards, pattern
from .reference import apply
from .tolerance import bound


@dataclass(frozen=True)
class CaseResult:
    """status: passed, failed or refused; why: the first thing wrong, or the refusal's reason.

    nmse: the normalised mean square error of each float output, as far as they were compared."""

    id: str
    status: str
    why: str = ""
    nmse: dict[str, float] = field(default_factory=dict)

    @property
    def op(self) -> str:
        """The name of the op."""
        return self.id.split("[", 1)[0]


@dataclass(frozen=True)
class Built:
    """A case as a graph: the node under test, and what to bind."""

    graph: Graph
    node: Node
    inputs: dict[str, np.ndarray]
    states: dict[str, HostTensor]


def build(case: BoundCase) -> Built:
    """One node with its leaves. States, constants and gaps become what they are in a model."""
    return _build(case, case.draw())


def outline(case: BoundCase) -> Node:
    """The node of a case without any values: enough to ask a backend whether it takes it."""
    specs = [None if d is None else TensorSpec(d.shape, d.dtype) for d in case.inputs]
    return _build(case, specs).node


def _build(case: BoundCase, tensors: list[Any]) -> Built:
    """tensors: HostTensors, or specs where values are not needed; None for absent inputs."""
    g = Graph(case.id)
    cls = type(case.op)
    names = cls.input_names()
    values: list[Value | None] = []
    inputs: dict[str, np.ndarray] = {}
    states: dict[str, HostTensor] = {}
    for i, tensor in enumerate(tensors):
        if tensor is None:
            values.append(None)
            continue
        spec = tensor.spec if isinstance(tensor, HostTensor) else tensor
        kind = names[min(i, len(names) - 1)]
        name = f"{kind}.{i}" if i >= len(names) or cls.inputs[-1].startswith("*") else kind
        strides = case.strides(i)
        if kind in cls.writes.values():
            values.append(g.state(name, spec.shape, spec.dtype))
            states[name] = tensor
        elif strides is None and (kind in cls.constants or spec.dtype.quantized):
            given = tensor is not spec
            values.append(g.constant(tensor, name) if given else g.weight(name, spec))
        else:
            value, wide = _spaced(g, name, spec, strides)
            values.append(value)
            if tensor is not spec:
                inputs[name] = _placed(wide, value.spec, tensor)
    node = g.apply(case.op, tuple(values))
    for i, label in enumerate(node.output_names()):
        g.output(label, node.value(i))
    return Built(g, node, inputs, states)


def _spaced(
    g: Graph, name: str, spec: TensorSpec, strides: tuple[int, ...] | None
) -> tuple[Value, tuple[int, ...]]:
    """The tensor as a view into a wider input, and that input's shape.

    The view starts as far into each widened axis as there is room."""
    extents = widened(spec, strides)
    value = g.input(name, extents, spec.dtype)
    for axis, (n, wide) in enumerate(zip(spec.shape, extents, strict=True)):
        if wide > n:
            value = g.view(value, axis=axis, start=wide - n, stop=wide)
    return value, extents


def widened(spec: TensorSpec, strides: tuple[int, ...] | None) -> tuple[int, ...]:
    """The shape of a contiguous tensor of which one with these byte strides is a part.

    Raises GraphError where there is none, as for axes in another order."""
    if strides is None or spec.size == 0:
        return spec.shape
    extents, step = list(spec.shape), spec.dtype.nbytes
    # The stride of an axis with one element is never used, so it says nothing.
    used = [axis for axis, n in enumerate(spec.shape) if n > 1 or axis == spec.rank - 1]
    fits = not used or spec.shape[-1] == 1 or strides[-1] == step
    for outer, axis in zip(used[-2::-1], used[:0:-1], strict=True):
        extents[axis] = strides[outer] // step
        fits = fits and strides[outer] % step == 0 and extents[axis] >= spec.shape[axis]
        step = strides[outer]
    if not fits:
        raise GraphError(f"strides {strides} of {spec} are not those of a part of a tensor")
    return tuple(extents)


def _placed(wide: tuple[int, ...], spec: TensorSpec, tensor: HostTensor) -> np.ndarray:
    """Storage of the wide input: the tensor's values in its part, NaN around it."""
    kind = spec.dtype.storage
    memory = pattern(math.prod(wide) * spec.dtype.nbytes).view(kind).reshape(wide)
    part = tuple(slice(w - n, w) for n, w in zip(tensor.spec.shape, wide, strict=True))
    memory[part] = tensor.raw.view(kind).reshape(tensor.spec.shape)
    return memory


def expected(case: BoundCase, specs: tuple[TensorSpec, ...]) -> list[np.ndarray]:
    """The reference's outputs, rounded to their dtypes.

    Raises GraphError where they are not as `infer` says."""
    args = [t.decoded() if t is not None else None for t in case.draw()]
    out = apply(case.op, args, specs)
    return [decode(s.dtype, encode(s.dtype, a), s.shape) for a, s in zip(out, specs, strict=True)]


def run_case(backend: Backend, case: BoundCase, kind: str = "step") -> CaseResult:
    """Run one case. A refusal and an exception are results like others."""
    errors: dict[str, float] = {}
    try:
        built = build(case)
        support = backend.supports(built.node)
        if not support.ok:
            return CaseResult(case.id, "refused", support.why or "no reason given")
        trial = Trial(backend, built, kind)
        trial.bound.run()
        why = trial.fault() or _wrong(case, built, trial.bound.outputs, errors)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    return CaseResult(case.id, "failed" if why else "passed", why, errors)


def _wrong(
    case: BoundCase, built: Built, got: dict[str, np.ndarray], errors: dict[str, float]
) -> str:
    """The first thing wrong with the outputs, "" for nothing; notes NMSEs in errors."""
    limit = bound(built.node)
    specs = built.node.specs
    labels = built.node.output_names()
    for label, spec, want in zip(labels, specs, expected(case, specs), strict=True):
        have = decode(spec.dtype, got[label], spec.shape)
        why = compare(have, want, limit, errors, label)
        if not why and label in case.op.writes:
            why = _untouched(got[label], want, built.states[case.op.writes[label]])
        if why:
            return f"{label}: {why}"
    return ""


def execute(
    backend: Backend, built: Built, kind: str = "step", rows: int | None = None
) -> dict[str, np.ndarray]:
    """Compile, bind, run once; copies of the outputs by name.

    All host memory lies between guard bytes. Raises AssertionError when the run wrote beside a
    buffer, beside a value in the arena, or to an input or constant."""
    trial = Trial(backend, built, kind)
    trial.bound.run(rows)
    if fault := trial.fault():
        raise AssertionError(f"{built.graph.name}: {fault}")
    return {k: np.ascontiguousarray(v) for k, v in trial.bound.outputs.items()}


class Trial:
    """A graph that is compiled, bound to guarded memory, and filled.

    bound: the bound plan; its arena and workspace are full of guard.UNWRITTEN."""

    def __init__(self, backend: Backend, built: Built, kind: str = "step") -> None:
        self.built, self.guards = built, Guards()
        with allocating(self.guards.allocate):
            self.plan: Plan = backend.compile(built.graph, kind)
            self._constants = {
                name: HostTensor(t.spec, self.guards.copy(t.raw, f"constant {name!r}"))
                for name, t in self.plan.graph.data.items()
            }
            # Nobody may rely on what was in scratch.
            self.pools = pools = backend.pools(self.plan.states)
            pools.fill = UNWRITTEN
            weights = backend.load_weights(self._constants)
            self.bound: BoundPlan = self.plan.bind(weights, pools)
        pools.scratch(self.plan.memory.arena_bytes)
        if backend.on_host:
            self._name_buffers()
        for name, tensor in built.states.items():
            pools.load(name, tensor.raw)
        for name, array in built.inputs.items():
            self.bound.inputs[name][...] = array

    def _name_buffers(self) -> None:
        self.guards.name(self.pools.scratch(0), "the arena")
        self.guards.name(self.pools.scratch(0, "workspace"), "the workspace")
        for name, array in self.bound.inputs.items():
            self.guards.name(array, f"input {name!r}")
        for name, array in self.pools.states.items():
            self.guards.name(array, f"state {name!r}")

    def fault(self) -> str:
        """The first thing that a run wrote and should not have, "" for nothing."""
        return self.guards.breach() or self._spilled() or self._altered()

    def _spilled(self) -> str:
        """Bytes of the arena that belong to no value stay as they were."""
        arena = self.pools.scratch_bytes()
        free = np.ones(arena.size, bool)
        for value, place in self.plan.memory.places.items():
            if place.kind == "arena":
                free[place.offset : place.offset + value.spec.span] = False
        changed = np.flatnonzero(free & (arena != UNWRITTEN))
        return f"wrote byte {changed[0]} of the arena, beside any value" if changed.size else ""

    def _altered(self) -> str:
        for name, array in self.built.inputs.items():
            if self.bound.inputs[name].tobytes() != array.tobytes():
                return f"changed its input {name!r}"
        for name, tensor in self.plan.graph.data.items():
            if not np.array_equal(self._constants[name].raw, tensor.raw):
                return f"changed its constant {name!r}"
        return ""


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


def _untouched(got: np.ndarray, want: np.ndarray, before: HostTensor) -> str:
    """Rows (and planes) that the reference left alone must be left alone bit for bit."""
    was = before.decoded()
    depth = 2 if was.ndim == 3 else 1
    same = (want == was).all(axis=tuple(range(depth, was.ndim))).reshape(-1)
    now, then = (a.reshape(same.size, -1).view(np.uint8) for a in (got, before.raw))
    if np.array_equal(now[same], then[same]):
        return ""
    return "a state row that should have stayed as it was has changed"
