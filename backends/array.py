"""The reference on an array module: numpy, or one with its interface such as cupy.

References are written with numpy's functions and operators, which hand arrays of another module on
to that module. Those that nevertheless need numpy's own arrays run on the host, between copies."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..graph import OPS, Graph, HostTensor, Node, Op, TensorSpec, Value
from ..graph.case import BoundCase, op_cases
from ..graph.codec import has_codec
from ..graph.errors import BackendError
from .base import Backend, Pools, Support, prepare, require_weights
from .harness import compare, expected, outline
from .reference import BoundReference, DecodedWeights, ReferencePlan, apply
from .tolerance import bound


class ArrayWeights(DecodedWeights):
    """Host tensors, decoded and moved to the module when first needed."""

    def __init__(
        self,
        tensors: Mapping[str, HostTensor],
        module: Any,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(tensors, progress)
        self.module = module

    def array(self, name: str) -> Any:
        """The decoded values of a weight as the module's array."""
        return self.once(name, lambda: self._array(self.tensors[name]))

    def _array(self, tensor: HostTensor) -> Any:
        made = self.module.asarray(tensor.decoded())
        self.moved(tensor.spec.nbytes)
        return made


class ArrayPlan(ReferencePlan):
    """A graph to interpret with the module's arrays."""

    def __init__(self, graph: Graph, kind: str, backend: ArrayBackend) -> None:
        super().__init__(graph, kind)
        self.backend = backend
        self._constants = ArrayWeights(graph.data, backend.module)
        for op in {type(n.op) for n in graph.nodes if not n.is_leaf}:
            backend.host_reason(op)

    def bind(self, weights: DecodedWeights, pools: Pools) -> BoundArray:
        """Attach weights and pools."""
        require_weights(self, weights.tensors)
        return BoundArray(self, weights, pools)


class BoundArray(BoundReference):
    """Interprets the plan's nodes; values between them are the module's arrays. Inputs, outputs
    and states are on the host."""

    plan: ArrayPlan

    def _apply(self, node: Node, args: list[Any]) -> tuple[Any, ...]:
        backend = self.plan.backend
        if not backend.host_reason(type(node.op)):
            return super()._apply(node, args)
        on_host = [backend.to_host(a) if a is not None else None for a in args]
        return tuple(backend.module.asarray(a) for a in super()._apply(node, on_host))

    def _leaf(self, node: Node) -> Any:
        value = super()._leaf(node)
        return value if node.op.name == "constant" else self.plan.backend.module.asarray(value)

    def _rounded(self, array: Any, spec: TensorSpec) -> Any:
        if spec.dtype.numpy is not None:
            return array
        backend = self.plan.backend
        return backend.module.asarray(super()._rounded(backend.to_host(array), spec))

    def _store(self, value: Value, array: Any) -> Any:
        backend = self.plan.backend
        kept = super()._store(value, backend.to_host(array))
        return array if value.spec.dtype.numpy is not None else backend.module.asarray(kept)

    def _out(self, array: Any, spec: TensorSpec) -> np.ndarray:
        return super()._out(self.plan.backend.to_host(array), spec)


class ArrayBackend(Backend):
    """Every op on an array module's device, by its reference.

    module: has `ndarray` and `asarray`, and `asnumpy` where numpy.asarray does not take its arrays
    back. Slow, like the reference; an oracle for kernels of the same device.

    Whether an op is native is decided once, before its first run, by its own cases: one small case
    for every combination of attributes, types and ranks is tried on the module's arrays, and all
    must give arrays of the module that are right. Other ops run on the host."""

    def __init__(self, module: Any, name: str = "") -> None:
        self.module = module
        self.name = name or f"array:{module.__name__}"
        self.to_host: Callable[[Any], np.ndarray] = getattr(module, "asnumpy", np.asarray)
        self._host: dict[str, str] = {}

    @property
    def native(self) -> list[str]:
        """Names of all ops that run on the module's arrays; tries those not met yet."""
        return [name for name, op in sorted(OPS.items()) if not self.host_reason(op)]

    def host_reason(self, op: type[Op]) -> str:
        """Why an op runs on the host, "" when it does not."""
        if op.name not in self._host:
            self._host[op.name] = self._try(op)
        return self._host[op.name]

    def supports(self, node: Node) -> Support:
        """Every node: what the module cannot do runs on the host."""
        return Support(True)

    def compile(self, graph: Graph, kind: str = "step") -> ArrayPlan:
        """A plan that interprets the graph."""
        return ArrayPlan(prepare(graph, kind), kind, self)

    def load_weights(
        self, weights: Mapping[str, HostTensor], progress: Callable[[int], None] | None = None
    ) -> ArrayWeights:
        """Keep host tensors; decoding and moving are lazy."""
        return ArrayWeights(weights, self.module, progress)

    def _try(self, op: type[Op]) -> str:
        cases = _one_of_each(op)
        if not cases:
            return "it has no cases to try"
        for case in cases:
            if why := self._try_case(case):
                return f"{case.id}: {why}"
        return ""

    def _try_case(self, case: BoundCase) -> str:
        drawn = [t.decoded() if t is not None else None for t in case.draw()]
        args = [self.module.asarray(a) if a is not None else None for a in drawn]
        # What a foreign array type raises where it does not fit is its own affair.
        node = outline(case)
        try:
            results = apply(case.op, args, node.specs)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        for got, want, spec in zip(results, expected(case, node.specs), node.specs, strict=True):
            if not isinstance(got, self.module.ndarray):
                return f"gives {type(got).__module__}.{type(got).__name__}"
            if spec.dtype.numpy is None:
                continue
            if why := compare(self.to_host(got), want, bound(node), {}, ""):
                return why
        return ""


def has_cupy() -> bool:
    """Whether cupy is installed; it is not imported."""
    return "cupy" in sys.modules or importlib.util.find_spec("cupy") is not None


def cupy_backend() -> ArrayBackend:
    """The reference on cupy's arrays. Raises BackendError where cupy is not installed or has no
    card to put arrays on."""
    try:
        module = importlib.import_module("cupy")
        module.asarray(np.zeros(1, np.float32))
    except ImportError as error:
        raise BackendError(f"cupy: {error}; install the cupy package for your CUDA") from None
    except Exception as error:  # cupy's own, known only where it is installed
        raise BackendError(f"cupy: it has no card: {type(error).__name__}: {error}") from None
    return ArrayBackend(module, "cupy")


def _one_of_each(op: type[Op]) -> list[BoundCase]:
    """The smallest case of every combination of attributes, types, ranks and absent inputs."""
    smallest: dict[object, BoundCase] = {}
    for case in sorted(op_cases(op), key=_elements):
        kinds = tuple((i.dtype.name, len(i.shape)) if i is not None else None for i in case.inputs)
        known = all(i is None or has_codec(i.dtype) for i in case.inputs)
        if "perf" not in case.tags and known and _elements(case):
            smallest.setdefault((case.op, kinds), case)
    return list(smallest.values())


def _elements(case: BoundCase) -> int:
    """Elements of all inputs together; 0 when any is empty, for then nothing runs."""
    sizes = [int(np.prod(i.shape)) for i in case.inputs if i is not None]
    return sum(sizes) if all(sizes) else 0
