"""The CPU backend: kernels of the compiled module, one native call a run."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from .. import _cpu
from ..graph import Graph, HostTensor, Value
from ..graph.errors import BackendError
from .base import Backend, BoundPlan, Capabilities, Pools, Weights, aligned, require_weights
from .native import PLAIN, NativeBackend, NativePlan, packed
from .processors import usable_threads

T = TypeVar("T")
ROWS16 = 1  # layout: rows of a weight interleaved by sixteen
SMALL = 1 << 20  # bytes of a weight that is not left in a mapped file
LEVELS = ("base", "avx2", "avxvnni", "avx512", "avx512vnni", "dotprod", "i8mm")

ABI_VERSION: int = _cpu.abi_version


def plugin_table(address: int) -> Any:
    """The kernels of a plug-in's rr_plugin at an address. Raises ValueError for a damaged one."""
    return _cpu.KernelTable.of_plugin(address)


def instruction_sets() -> list[str]:
    """The instruction-set levels in use, lowest first; RIVERRUN_ISA, unless empty, caps them.

    Raises BackendError for a level that is not one."""
    _asked_isa()
    return list(_cpu.isas())


def _asked_isa() -> str:
    """RIVERRUN_ISA, or an empty text."""
    cap = os.environ.get("RIVERRUN_ISA", "")
    if cap and cap not in LEVELS:
        raise BackendError(f"RIVERRUN_ISA should be one of {', '.join(LEVELS)}, got {cap!r}")
    return cap


def _warn_of_another_isa() -> None:
    """Warn where the level in use is not the one that RIVERRUN_ISA names."""
    asked, levels = _asked_isa(), _cpu.isas()
    if not asked or asked == levels[-1]:
        return
    why = "but was set after it was read" if asked in levels else "which this processor lacks"
    message = f"RIVERRUN_ISA asks for {asked} kernels, {why}; {levels[-1]} ones are used"
    warnings.warn(message, UserWarning, stacklevel=3)


class CpuWeights(Weights):
    """Weights stay mapped; kernels' layouts are made when the first plan is bound, and what they
    were made of leaves memory."""

    def buffer(self, name: str, layout: int) -> np.ndarray:
        """The bytes of a weight in a layout."""
        tensor = self.tensors[name]
        if layout != PLAIN:
            return self.once((name, layout), lambda: self._packed(tensor, layout))
        # Files with an alignment below 4 leave floats where C++ may not read them. What is small
        # and stays in a mapped file keeps what lies around it in memory, too.
        small = tensor.give_back is not None and tensor.raw.nbytes <= SMALL
        if small or tensor.raw.ctypes.data % 4:
            return self.once((name, layout), lambda: _moved(tensor))
        return tensor.raw

    def _packed(self, tensor: HostTensor, layout: int) -> np.ndarray:
        made = packed(_cpu, tensor, layout)
        self.moved(tensor.spec.nbytes)
        return made


def _moved(tensor: HostTensor) -> np.ndarray:
    """The same bytes in aligned memory, and there alone."""
    made = aligned(tensor.raw.nbytes)
    made[...] = tensor.raw
    if tensor.give_back:
        tensor.give_back(tensor.raw)
    return made


class CpuPlan(NativePlan):
    """A plan of the module `_cpu`."""

    backend: CpuBackend

    def bind(self, weights: CpuWeights, pools: Pools) -> BoundCpu:
        """Attach weights and pools. Raises GraphError for weights that do not fit."""
        require_weights(self, weights.tensors)
        return BoundCpu(self, weights, pools)


class BoundCpu(BoundPlan):
    """A native plan with its buffers."""

    def __init__(self, plan: CpuPlan, weights: CpuWeights, pools: Pools) -> None:
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

    def repeat(self, runs: int) -> tuple[float, int | None]:
        """Run so many times in one native call: seconds of all, and the instructions of the calling
        thread, None where the system does not count them."""
        failed, nanoseconds, instructions = self.native.repeat(self.pool, 1 << 62, runs)
        if failed:
            raise BackendError(failed)
        return nanoseconds / 1e9, instructions

    def profile(self, rows: int | None = None) -> list[tuple[str, int]]:
        """Run once; (op and name, nanoseconds) of every node."""
        failed, times = self.native.profile(self.pool, 1 << 62 if rows is None else rows)
        if failed:
            raise BackendError(failed)
        return list(zip(self.plan.labels, times, strict=True))


class CpuBackend(NativeBackend):
    """The processor that runs this interpreter."""

    name = "cpu"
    module = _cpu
    packed_layouts: Sequence[int] = (ROWS16,)

    def __init__(self, threads: int | None = None, *, oversubscribe: bool = False) -> None:
        """threads: by default one for each physical core that affinity and the cgroup quota
        allow. More than there are processors are not started, with a warning, and while other
        programs keep the processors busy a run may use fewer; oversubscribe, for checks that
        results do not depend on threads, starts and uses them all the same, and is slow.

        Raises BackendError for a number out of range, and where the system does not let so many
        threads be started."""
        _warn_of_another_isa()
        n_threads: int = (threads or 1) if oversubscribe else usable_threads(threads)
        self.pool = _with_threads(lambda: _cpu.ThreadPool(n_threads, all=oversubscribe))
        self.use(self._table())
        self.capabilities = Capabilities(threads=n_threads, prompt_exact=self.row_exact)

    def share_threads(self, other: Backend) -> None:
        """Of another pool of the processor, if that has as many."""
        if isinstance(other, CpuBackend) and other.pool.size == self.pool.size:
            self.pool = other.pool

    def _table(self) -> Any:
        return _cpu.KernelTable.builtin()

    def native_plan(self, steps: list[tuple[Any, ...]], n_buffers: int) -> Any:
        """A plan for this backend's threads."""
        return _cpu.Plan(steps, n_buffers, self.pool.size)

    def compile(self, graph: Graph, kind: str = "step") -> CpuPlan:
        """Choose kernels, assign memory; fused nodes that no kernel takes are expanded.

        Raises Unsupported naming the node and the reasons."""
        return CpuPlan(self._ready(graph, kind), kind, self)

    def load_weights(
        self, weights: Mapping[str, HostTensor], progress: Callable[[int], None] | None = None
    ) -> CpuWeights:
        """Weights stay mapped; kernels' layouts are made when the first plan is bound."""
        return CpuWeights(weights, progress)

    def read_rate(self, nbytes: int, repetitions: int = 5) -> float:
        """Bytes per second that its threads read of nbytes, in memory like that of weights: the
        fastest of so many sweeps at each of several distances of fetching ahead."""
        memory = aligned(max(nbytes, 1), filled=True)
        memory[...] = 1  # pages that nobody wrote to are all the same one
        return _with_threads(lambda: _cpu.read_rate(self.pool, memory, repetitions))

    def fma_rate(self) -> float:
        """Operations of multiply-adds on registers at the highest instruction set in use."""
        return _with_threads(lambda: _cpu.fma_rate(self.pool))

    def clock_rate(self) -> float:
        """Cycles a second of the core that the calling thread is on."""
        return _cpu.clock_rate()

    def dot_peak(self, wide: bool) -> tuple[str, float]:
        """The dot instruction of the highest instruction set in use, empty where none is known, and
        the products a second of one core on registers. wide: for weights of 8 bits."""
        return _cpu.dot_peak(wide)


def _with_threads(start: Callable[[], T]) -> T:
    """What a call gives that may start threads."""
    try:
        return start()
    except _cpu.ThreadLimit as error:
        raise BackendError(str(error)) from None
