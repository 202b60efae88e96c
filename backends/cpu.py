"""The CPU backend: kernels of the compiled module, one native call a run."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .. import _cpu
from ..graph import Graph, HostTensor, Node, TensorSpec, Value
from ..graph.dtype import DType
from ..graph.errors import BackendError, Unsupported
from ..graph.memory import Place, plan_memory
from ..graph.passes.expand import expand, expansion
from .base import Backend, BoundPlan, Plan, Pools, Support, aligned, prepare, require_weights

PLAIN, ROWS16 = 0, 1
LEVELS = ("base", "avx2", "avx512", "avx512vnni")
_U8_ID = 1000  # the C ABI's id for a type that ggml has none for


ABI_VERSION: int = _cpu.abi_version


def plugin_table(address: int) -> Any:
    """The kernels of a plug-in's rr_plugin at an address. Raises ValueError for a damaged one."""
    return _cpu.KernelTable.of_plugin(address)


def instruction_sets() -> list[str]:
    """The instruction-set levels in use, lowest first; RIVERRUN_ISA caps them.

    Raises BackendError for a level that is not one."""
    cap = os.environ.get("RIVERRUN_ISA")
    if cap is not None and cap not in LEVELS:
        raise BackendError(f"RIVERRUN_ISA should be one of {', '.join(LEVELS)}, got {cap!r}")
    return list(_cpu.isas())


def default_threads() -> int:
    """Threads that affinity and the cgroup quota allow, at least 1."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:
        allowed = os.cpu_count() or 1
    return max(1, min(allowed, _cgroup_quota() or allowed))


def _cgroup_quota(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Whole processors of the cgroup's CPU quota (unified or legacy files), None without one."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = (int(n) for f in names for n in (root / f).read_text().split())
        except (OSError, ValueError):
            continue
        if quota > 0 and period > 0:
            return max(1, quota // period)
    return None


def _type_id(dtype: DType) -> int:
    return dtype.ggml_id if dtype.ggml_id >= 0 else _U8_ID


def _describe(spec: TensorSpec | None, layout: int = PLAIN) -> tuple[Any, ...] | None:
    if spec is None:
        return None
    return _type_id(spec.dtype), layout, spec.shape, spec.byte_strides


def _pack(tensor: HostTensor, layout: int) -> np.ndarray:
    """A weight in a packed layout, one matrix (the last two axes) after the other."""
    *lead, rows, cols = tensor.spec.shape
    count, kind = math.prod(lead), _type_id(tensor.spec.dtype)
    size = _cpu.packed_bytes(kind, layout, rows, cols)
    packed = aligned(count * size).reshape(count, size)
    for plain, into in zip(tensor.raw.reshape(count, -1), packed, strict=True):
        _cpu.pack(kind, layout, plain, into, rows, cols)
    return packed.reshape(-1)


class Weights:
    """Weights in the layouts that kernels ask for; a layout is made once, when first needed."""

    def __init__(
        self, tensors: Mapping[str, HostTensor], progress: Callable[[int], None] | None = None
    ) -> None:
        self.tensors = dict(tensors)
        self.progress = progress
        self._packed: dict[tuple[str, int], np.ndarray] = {}

    def buffer(self, name: str, layout: int) -> np.ndarray:
        """The bytes of a weight in a layout."""
        tensor = self.tensors[name]
        key = (name, layout)
        if layout == PLAIN:
            # Files with an alignment below 4 leave floats where C++ may not read them.
            if tensor.raw.ctypes.data % 4 and key not in self._packed:
                self._packed[key] = aligned(tensor.raw.nbytes)
                self._packed[key][...] = tensor.raw
            return self._packed.get(key, tensor.raw)
        if key not in self._packed:
            self._packed[key] = _pack(tensor, layout)
            if self.progress:
                self.progress(tensor.spec.nbytes)
        return self._packed[key]


class CpuPlan(Plan):
    """Kernels chosen, places assigned; holds the native plan."""

    def __init__(self, graph: Graph, kind: str, backend: CpuBackend) -> None:
        super().__init__(graph, kind)
        self.backend = backend
        self.memory = plan_memory(graph)
        self.buffers: dict[tuple[str, str, int], int] = {("arena", "", PLAIN): 0}
        self.labels: list[str] = []
        self._constants = Weights(graph.data)
        steps = [self._step(n) for n in graph.nodes if not n.is_leaf and not n.op.view]
        self._keep_outputs()
        self.native = _cpu.Plan(steps, len(self.buffers), backend.threads, backend.table)

    def _step(self, node: Node) -> tuple[Any, ...]:
        native, kernel, layouts, why = self.backend.choose(node)
        if kernel < 0:
            raise Unsupported(f"cpu: no kernel takes {node.op.name} ({node.describe()}): {why}")
        sources = [
            self._locate(v, layout) if v is not None else None
            for v, layout in zip(node.inputs, layouts, strict=True)
        ]
        targets = [self._locate(node.value(i), PLAIN) for i in range(len(node.specs))]
        self.labels.append(f"{node.op.name} {node.name}".strip())
        return native, kernel, sources, targets, node.describe(), node.op.rowwise

    def _locate(self, value: Value, layout: int) -> tuple[int, int]:
        place: Place = self.memory.places[value]
        key = (place.kind, place.name, layout)
        return self.buffers.setdefault(key, len(self.buffers)), place.offset

    def _keep_outputs(self) -> None:
        for value in self.graph.outputs.values():
            self._locate(value, PLAIN)

    def source(self, weights: Weights, name: str) -> Weights:
        """Where a constant's data are: the given weights, or the graph itself."""
        return weights if name in weights.tensors else self._constants

    def bind(self, weights: Weights, pools: Pools) -> BoundCpu:
        """Attach weights and pools. Raises GraphError for weights that do not fit."""
        require_weights(self, weights.tensors)
        return BoundCpu(self, weights, pools)

    def own_weights(self) -> Weights:
        """The constants given while building."""
        return self._constants


class BoundCpu(BoundPlan):
    """A native plan with its buffers."""

    def __init__(self, plan: CpuPlan, weights: Weights, pools: Pools) -> None:
        self.plan, self.pool = plan, plan.backend.pool
        self.inputs, self._raw_inputs = {}, {}
        for name, spec in plan.inputs.items():
            raw = aligned(spec.nbytes)
            self._raw_inputs[name] = raw
            self.inputs[name] = raw.view(spec.dtype.storage).reshape(spec.storage_shape)
        self.scratch = pools.scratch(plan.memory.arena_bytes)
        self.workspace = pools.scratch(plan.native.workspace_bytes, "workspace")
        find: dict[str, Callable[[str, int], np.ndarray]] = {
            "arena": lambda name, layout: self.scratch,
            "input": lambda name, layout: self._raw_inputs[name],
            "constant": lambda name, layout: plan.source(weights, name).buffer(name, layout),
            "state": lambda name, layout: pools.states[name],
        }
        self._buffers = [find[kind](name, layout) for kind, name, layout in plan.buffers]
        self.native = plan.native.bind(self._buffers, self.workspace)
        self.outputs = {k: self._view(v) for k, v in plan.graph.outputs.items()}

    def _view(self, value: Value) -> np.ndarray:
        """An output where it lies: block types as uint8 rows, bf16 as uint16."""
        place, spec = self.plan.memory.places[value], value.spec
        raw = self._buffers[self.plan.buffers[(place.kind, place.name, PLAIN)]]
        shape, kind = spec.storage_shape, spec.dtype.storage
        if spec.size == 0:
            return np.empty(shape, kind)
        return np.ndarray(shape, kind, raw.data, place.offset, spec.storage_strides)

    def run(self, rows: int | None = None) -> None:
        """Run once in one native call, without the interpreter's lock."""
        failed = self.native.run(self.pool, 1 << 62 if rows is None else rows)
        if failed:
            raise BackendError(failed)

    def profile(self, rows: int | None = None) -> list[tuple[str, int]]:
        """Run once; (op and name, nanoseconds) of every node."""
        failed, times = self.native.profile(self.pool, 1 << 62 if rows is None else rows)
        if failed:
            raise BackendError(failed)
        return list(zip(self.plan.labels, times, strict=True))


class CpuBackend(Backend):
    """The processor that runs this interpreter."""

    name = "cpu"
    packs = True  # whether kernels may ask for constants in a packed layout

    def __init__(self, threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise BackendError(f"threads should be 1 or more, got {threads}")
        instruction_sets()
        self.threads: int = threads or default_threads()
        self.pool = _cpu.ThreadPool(self.threads)
        self.table = self._table()

    def _table(self) -> Any:
        self.kernels = _cpu.kernels()
        return _cpu.KernelTable.builtin()

    def choose(self, node: Node) -> tuple[Any, int, list[int], str]:
        """(native node, kernel index or -1, layout per input, reasons) for a node.

        Constants are offered packed first, then as they are in the file."""
        names = [n.strip("?*") for n in node.op.inputs]
        packed = [PLAIN] * len(node.inputs)
        for i, value in enumerate(node.inputs):
            if value is None or value.node.op.name != "constant" or value.spec.rank not in (2, 3):
                continue
            if self.packs and names[min(i, len(names) - 1)] in node.op.constants:
                kind = _type_id(value.dtype)
                packed[i] = ROWS16 if _cpu.packed_bytes(kind, ROWS16, *value.shape[-2:]) else PLAIN
        why = ""
        for layouts in [packed, [PLAIN] * len(packed)] if any(packed) else [packed]:
            inputs = [_describe(s, at) for s, at in zip(node.input_specs(), layouts, strict=True)]
            outputs = [_describe(s) for s in node.specs]
            native = _cpu.Node(node.op.name, inputs, outputs, node.op.attributes())
            kernel, why = self.table.find(native)
            if kernel >= 0:
                return native, kernel, layouts, ""
        return None, -1, [], why

    def supports(self, node: Node) -> Support:
        """Whether kernels that this processor can run take the node, or what it expands to."""
        why = self._lacks(node)
        parts = expansion(node) if why else None
        if parts is None:
            return Support(not why, why)
        for part in expand(parts, self._has_kernel).nodes:
            if lack := self._lacks(part):
                return Support(False, f"{why}; expanded: {part.op.name}: {lack}")
        return Support(True)

    def _lacks(self, node: Node) -> str:
        """Why no kernel takes a node, "" when one does or none is needed."""
        if node.is_leaf or node.op.view:
            return ""
        _, kernel, _, why = self.choose(node)
        return "" if kernel >= 0 else why or "refused"

    def _has_kernel(self, node: Node) -> bool:
        return not self._lacks(node)

    def compile(self, graph: Graph, kind: str = "step") -> CpuPlan:
        """Choose kernels, assign memory; fused nodes that no kernel takes are expanded.

        Raises Unsupported naming the node and the reasons."""
        return CpuPlan(expand(prepare(graph, kind), self._has_kernel), kind, self)

    def load_weights(
        self, weights: Mapping[str, HostTensor], progress: Callable[[int], None] | None = None
    ) -> Weights:
        """Weights stay mapped; kernels' layouts are made when the first plan is bound."""
        return Weights(weights, progress)

    def fma_rate(self) -> float:
        """Operations of multiply-adds on registers at the highest instruction set in use."""
        return _cpu.fma_rate(self.pool)
