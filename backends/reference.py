"""The reference backend: every op by its numpy meaning, one node after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..graph import DType, Graph, HostTensor, Node, Op, TensorSpec, Value
from ..graph.codec import decode, encode
from ..graph.errors import BackendError, DTypeError, GraphError
from ..graph.memory import plan_memory
from ..graph.verify import state_versions
from .base import (
    Backend,
    BoundPlan,
    Capabilities,
    Plan,
    Pools,
    Support,
    Weights,
    prepare,
    require_weights,
)


class DecodedWeights(Weights):
    """Host tensors, decoded when first needed."""

    def array(self, name: str) -> np.ndarray:
        """The decoded values of a weight."""
        return self.once(name, self.tensors[name].decoded)


class ReferencePlan(Plan):
    """A graph to interpret."""

    def __init__(self, graph: Graph, kind: str) -> None:
        super().__init__(graph, kind)
        self.memory = plan_memory(graph)
        self._constants = DecodedWeights(graph.data)

    def bind(self, weights: DecodedWeights, pools: Pools) -> BoundReference:
        """Attach weights and pools."""
        require_weights(self, weights.tensors)
        return BoundReference(self, weights, pools)

    def own_weights(self) -> DecodedWeights:
        """The constants given while building."""
        return self._constants

    def array(self, weights: DecodedWeights, name: str) -> np.ndarray:
        """A constant's values, from the given weights or the graph itself."""
        return (weights if name in weights.tensors else self._constants).array(name)


class BoundReference(BoundPlan):
    """Interprets the plan's nodes in order."""

    def __init__(self, plan: ReferencePlan, weights: DecodedWeights, pools: Pools) -> None:
        self.plan, self.weights, self.pools = plan, weights, pools
        self.inputs = {
            k: np.zeros(s.storage_shape, s.dtype.storage) for k, s in plan.inputs.items()
        }
        self.outputs = {}
        self._roots = {v: n.name for v, (n, _) in _state_roots(plan.graph).items()}

    def run(self, rows: int | None = None) -> None:
        """Run every node; padding rows are computed like the others."""
        self.profile(rows)

    def profile(self, rows: int | None = None) -> list[tuple[str, int]]:
        """Run once; (op and name, nanoseconds) of every node that is neither leaf nor view."""
        values: dict[Value, Any] = {}
        times: list[tuple[str, int]] = []
        for node in self.plan.graph.nodes:
            if node.is_leaf:
                values[node.value()] = self._leaf(node)
                continue
            start = time.perf_counter_ns()
            results = self._apply(node, [values[v] if v is not None else None for v in node.inputs])
            for index, array in enumerate(results):
                value = node.value(index)
                if index in node.written() and value in self._roots:
                    values[value] = self._store(value, array)
                else:
                    values[value] = self._rounded(array, value.spec)
            if not node.op.view:
                label = f"{node.op.name} {node.name}".strip()
                times.append((label, time.perf_counter_ns() - start))
        self.outputs = {k: self._output(v, values[v]) for k, v in self.plan.graph.outputs.items()}
        return times

    def _apply(self, node: Node, args: list[Any]) -> tuple[Any, ...]:
        """The values of a node's outputs."""
        return apply(node.op, args, node.specs)

    def _leaf(self, node: Node) -> Any:
        spec = node.specs[0]
        if node.op.name == "constant":
            return self.plan.array(self.weights, node.name)
        if node.op.name == "input":
            return decode(spec.dtype, self.inputs[node.name], spec.shape)
        return decode(spec.dtype, self.pools.states[node.name], spec.shape).copy()

    def _rounded(self, array: Any, spec: TensorSpec) -> Any:
        """A result as later nodes read it: rounded to its dtype where numpy does not have it."""
        if spec.dtype.numpy is not None:
            return array
        return decode(spec.dtype, encode(spec.dtype, array), spec.shape)

    def _out(self, array: Any, spec: TensorSpec) -> np.ndarray:
        """A value as the storage that callers read."""
        return stored(array, spec)

    def _output(self, value: Value, array: Any) -> np.ndarray:
        """An output's storage; that of a state in blocks is the state's own."""
        spec = value.spec
        if spec.dtype.numpy is None and value in self._roots and not value.node.op.view:
            raw = self.pools.states[self._roots[value]].copy()
            return raw.view(spec.dtype.storage).reshape(spec.storage_shape)
        return self._out(array, spec)

    def _store(self, value: Value, array: Any) -> Any:
        """Write a state's new version, and give its values as later nodes read them."""
        raw, spec = self.pools.states[self._roots[value]], value.spec
        if spec.dtype.numpy is not None:
            raw[...] = self._out(array, spec).reshape(-1).view(np.uint8)
            return array
        try:
            restore(raw, np.asarray(array, np.float32), spec.dtype)
        except DTypeError as error:
            raise BackendError(f"{value.node.op.name}: {error}") from None
        return decode(spec.dtype, raw, spec.shape).copy()


def apply(op: Op, args: Sequence[Any], specs: Sequence[TensorSpec]) -> tuple[Any, ...]:
    """What an op's reference makes of arrays (None for absent inputs): one array an output.

    specs: of the outputs, as `infer` gives them. Raises GraphError where the reference returns
    another number of outputs, another shape or another dtype; block types and bf16 are f32."""
    results = op.reference(*args)
    results = results if isinstance(results, tuple) else (results,)
    if len(results) != len(specs):
        raise GraphError(
            f"{op.name}: 'reference' should return {_outputs(len(specs))}, as infer does, got "
            f"{_outputs(len(results))}; absent optional outputs are left out"
        )
    for name, result, spec in zip(op.output_names(len(specs)), results, specs, strict=True):
        want = spec.dtype.numpy or np.dtype(np.float32)
        array = hasattr(result, "shape") and not isinstance(result, np.generic)
        if not array:
            got = type(result).__name__
        elif tuple(result.shape) != spec.shape or result.dtype != want:
            got = _array(result.dtype, result.shape)
        else:
            continue
        raise GraphError(
            f"{op.name}: output '{name}' of 'reference' should be {_array(want, spec.shape)}, as "
            f"infer says, got {got}; mend the op's reference or its infer"
        )
    return results


def _outputs(count: int) -> str:
    return "1 output" if count == 1 else f"{count} outputs"


def _array(dtype: Any, shape: Sequence[int]) -> str:
    return f"an array of {dtype} {tuple(shape)}"


def stored(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """Values as storage: plain types as themselves, bf16 as uint16, block types as uint8 rows."""
    if spec.dtype.numpy is not None:
        return np.ascontiguousarray(array, spec.dtype.numpy)
    return np.ascontiguousarray(encode(spec.dtype, array)).view(spec.dtype.storage)


def restore(raw: np.ndarray, values: np.ndarray, of: DType) -> None:
    """Bring flat storage of a block type or bf16 to new values, in place.

    Blocks that decode to the very values wanted keep their bytes: encoding them again could give
    others, and memory that was never written need not be encodable at all. Raises DTypeError, with
    the storage as it was, for values that cannot be encoded."""
    old = decode(of, raw, (values.size,)).reshape(-1, of.block)
    new = np.ascontiguousarray(values).reshape(-1, of.block)
    changed = (new.view(np.uint32) != old.view(np.uint32)).any(axis=-1)
    blocks = raw.reshape(-1, of.nbytes)
    blocks[changed] = encode(of, new[changed]).reshape(-1, of.nbytes)


def _state_roots(graph: Graph) -> dict[Value, tuple[Node, int]]:
    """For every version of a state, the state's leaf."""
    roots: dict[Value, tuple[Node, int]] = {}
    for value in state_versions(graph):
        node, index = value.node, value.index
        if node.is_leaf:
            roots[value] = (node, 0)
        elif node.op.view and node.inputs[0] is not None:
            roots[value] = roots[node.inputs[0]]
        else:
            roots[value] = roots[node.written()[index]]
    return roots


class ReferenceBackend(Backend):
    """Slow, and right by definition."""

    name = "reference"
    capabilities = Capabilities(prompt_exact=True)

    def supports(self, node: Node) -> Support:
        """Every registered op has a reference."""
        return Support(True)

    def compile(self, graph: Graph, kind: str = "step") -> ReferencePlan:
        """A plan that interprets the graph."""
        return ReferencePlan(prepare(graph, kind), kind)

    def load_weights(
        self, weights: Mapping[str, HostTensor], progress: Callable[[int], None] | None = None
    ) -> DecodedWeights:
        """Keep host tensors; decoding is lazy."""
        return DecodedWeights(weights, progress)
