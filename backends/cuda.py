"""The CUDA backend: kernels of the optional module `_cuda`, a recorded graph a run."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

try:
    from .. import _cuda
except ImportError as error:
    _cuda = None  # type: ignore[assignment]
    _MISSING = str(error)

from ..graph import Graph, HostTensor, TensorSpec, Value
from ..graph.dtype import DType, f32
from ..graph.dtype import dtype as to_dtype
from ..graph.errors import BackendError, GraphError
from .base import BoundPlan, Capabilities, Pools, require_rows, require_weights
from .cuda_arrays import DeviceTensor, Region, borrowed, stream_handle
from .cuda_memory import (
    ALIGN,
    CudaPools,
    CudaWeights,
    PinnedTensors,
    cuda_errors,
    require_free,
    shaped,
    upload,
)
from .native import PLAIN, NativeBackend, NativePlan

GRAPHS = "RIVERRUN_CUDA_GRAPHS"  # 0: launch every kernel anew in every run
OVERLAP = "RIVERRUN_CUDA_OVERLAP"  # 0: a kernel begins when the one before it has ended
PROMPT_CHUNK = 2048  # fewer tokens leave multiprocessors idle in a model's smaller products
ROWS8 = 2  # layout: weights packed by eight rows
OLDEST = 8  # major compute capability: kernels use bf16 products and copies in the background
_BUILD = (
    "install riverrun with its CUDA kernels: pip install . -C cmake.define.RIVERRUN_CUDA=ON, "
    "which needs the CUDA toolkit's nvcc"
)


def built() -> bool:
    """Whether this build of riverrun has CUDA kernels."""
    return _cuda is not None


def emulated() -> bool:
    """Whether those kernels run on the processor, for checking them without a card."""
    return built() and bool(_cuda.emulated)


Facts = Mapping[str, Any]


def name_of(index: int) -> str:
    """The device name of a card."""
    return f"cuda:{index}" if index else "cuda"


def cards() -> list[dict[str, Any]]:
    """This machine's cards: name, major and minor of the compute capability, multiprocessors,
    total_bytes. Raises BackendError, saying what is missing, where none can be used."""
    if not built():
        wrong = "" if "cannot import name" in _MISSING else f" ({_MISSING})"
        raise BackendError(f"cuda: this build of riverrun has no CUDA kernels{wrong}; {_BUILD}")
    try:
        return [_cuda.describe_card(i) for i in range(_cuda.card_count())]
    except _cuda.CudaError as error:
        raise BackendError(f"cuda: {error}; is NVIDIA's driver installed?") from None


def describe(card: Facts) -> str:
    """A card in a few words."""
    size = card["total_bytes"] / 2**30
    where = ", emulated on the processor" if emulated() else ""
    return f"{card['name']}, {size:.0f} GiB, compute {card['major']}.{card['minor']}{where}"


def serves(architectures: str, major: int, minor: int) -> bool:
    """Whether kernels built for these architectures, in CMake's form ("80-real;90-real;120"), run
    on a card: machine code on minor versions from its own on, PTX also on later cards."""
    if architectures == "emulated":
        return True
    if major < OLDEST:
        return False
    for item in architectures.split(";"):
        number, _, form = item.strip().partition("-")
        digits = number.rstrip("af")
        own = (int(digits[:-1]), int(digits[-1]))
        # Code for an architecture's own features ("90a") runs there only.
        if digits != number:
            if own == (major, minor):
                return True
            continue
        if form != "virtual" and own[0] == major and own[1] <= minor:
            return True
        if form != "real" and own <= (major, minor):
            return True
    return False


def refusal(card: Facts) -> str:
    """Why the kernels of this build do not run on a card; "" where they do."""
    archs = _cuda.architectures
    if serves(archs, card["major"], card["minor"]):
        return ""
    remedy = (
        f"build with -C cmake.define.CMAKE_CUDA_ARCHITECTURES={card['major']}{card['minor']}"
        if card["major"] >= OLDEST
        else f"they need {OLDEST}.0 at least; use --device cpu"
    )
    return (
        f"cuda: {card['name']} has compute capability {card['major']}.{card['minor']}, and "
        f"riverrun's kernels were built for {archs}; {remedy}"
    )


def _open_card(index: int) -> Any:
    found = cards()
    if not 0 <= index < len(found):
        there = ", ".join(name_of(i) for i in range(len(found))) or "no CUDA device"
        raise BackendError(f"{name_of(index)} is not there; this machine has {there}")
    if why := refusal(found[index]):
        raise BackendError(why)
    with cuda_errors():
        return _cuda.Card(index)


def serves_warpgroups(index: int) -> bool:
    """Whether products of prompts run on the card's warpgroups: of compute capability 9.0, with
    code for its own features."""
    card, built_for = cards()[index], _cuda.architectures
    return (card["major"], card["minor"]) == (9, 0) and ("90a" in built_for or emulated())


def free_bytes(index: int) -> int:
    """Bytes of a card's memory that nobody uses now. Raises BackendError as CudaBackend does."""
    card = _open_card(index)
    with cuda_errors():
        return int(card.free_bytes)


class CudaPlan(NativePlan):
    """A plan of the module `_cuda`."""

    backend: CudaBackend

    def bind(
        self,
        weights: CudaWeights,
        pools: Pools,
        arrays: Mapping[str, Any] | None = None,
        results: Mapping[str, Any] | None = None,
        host_outputs: bool = True,
        placed: Collection[str] = (),
    ) -> BoundCuda:
        """Attach weights and pools, and record the CUDA graph of a run.

        arrays: inputs by name that are arrays on the card already, of any library that has
        __dlpack__ or __cuda_array_interface__; runs read them in place, and nothing is uploaded for
        them. results: arrays that a run copies outputs to, on the card, at its end. Both are kept.
        host_outputs: whether runs bring outputs to the host; without, `device` has them. placed:
        further inputs of which nothing is uploaded, which `put` sets.
        Raises GraphError for weights that do not fit and for pools that are not the backend's own,
        BackendError for arrays elsewhere or of another shape, type or layout."""
        require_weights(self, weights.tensors)
        if not isinstance(pools, CudaPools) or pools.card is not self.backend.card:
            raise GraphError("a plan on cuda is bound to pools that its backend's `pools` makes")
        own = {n: self.backend.empty(self.inputs[n].shape, self.inputs[n].dtype) for n in placed}
        given = self._borrowed({**(arrays or {}), **own}, "input", self.inputs)
        outputs = {k: v.spec for k, v in self.graph.outputs.items()}
        targets = self._borrowed(results or {}, "output", outputs)
        return BoundCuda(self, weights, pools, given, targets, host_outputs)

    def _borrowed(
        self, arrays: Mapping[str, Any], kind: str, specs: Mapping[str, TensorSpec]
    ) -> dict[str, Region]:
        """Foreign arrays as regions of the card's memory."""
        unknown = sorted(set(arrays) - set(specs))
        if unknown:
            raise BackendError(
                f"cuda: {kind}s of the plan are {sorted(specs)}, got arrays for {unknown}"
            )
        card = self.backend.card
        with cuda_errors():
            return {k: borrowed(card, f"{kind} {k!r}", v, specs[k]) for k, v in arrays.items()}

    def pools(self) -> Pools:
        """New memory for the plan's states."""
        return self.backend.pools(self.states)


class BoundCuda(BoundPlan):
    """A native plan with its device memory. Inputs and outputs are pinned host memory that the run
    copies from and to; outputs that are states are fetched when they are asked for.

    given: inputs that are read where they lie; targets: where outputs are copied to."""

    def __init__(
        self,
        plan: CudaPlan,
        weights: CudaWeights,
        pools: CudaPools,
        given: Mapping[str, Region],
        targets: Mapping[str, Region],
        host_outputs: bool,
    ) -> None:
        self.plan, self.pools = plan, pools
        card = plan.backend.card
        staged = PinnedTensors({n: s for n, s in plan.inputs.items() if n not in given})
        self.inputs = staged.arrays
        with cuda_errors():
            memory = _cuda.CardMemory(card, max(staged.size, ALIGN))
        # Copies fill it before the first kernel begins, and no kernel writes there.
        memory.constant = True
        own = {n: (memory, at, plan.inputs[n].span) for n, at in staged.offsets.items()}
        self._input_regions = own | dict(given)
        arena = pools.scratch(plan.memory.arena_bytes)
        workspace = pools.scratch(plan.native.workspace_bytes, "workspace")
        find: dict[str, Callable[[str, int], Region]] = {
            "arena": lambda name, layout: (arena, 0, arena.size),
            "input": lambda name, layout: self._input_regions[name],
            "constant": lambda name, layout: _whole(
                plan.source(weights, name).buffer(name, layout)
            ),
            "state": lambda name, layout: _whole(pools.states[name]),
        }
        self._regions = [find[kind](name, layout) for kind, name, layout in plan.buffers]
        uploads = [(staged.pinned, 0, memory, 0, staged.size)] if staged.size else []
        downloads = self._downloads(host_outputs)
        copies = [
            (into, at, *self._place(name)[:2], size)
            for name, (into, at, size) in targets.items()
            if size
        ]
        with cuda_errors():
            self.native = plan.native.bind(
                card,
                self._regions,
                _whole(workspace),
                uploads,
                downloads,
                copies,
                plan.backend.graphs,
                plan.backend.overlap,
            )
        self.launches = self.native.launches or None

    def _place(self, name: str) -> Region:
        """Where an output lies when a run has ended."""
        value = self.plan.graph.outputs[name]
        place = self.plan.memory.places[value]
        memory, offset, _ = self._regions[self.plan.buffers[(place.kind, place.name, PLAIN)]]
        return memory, offset + place.offset, value.spec.span

    def _downloads(self, wanted: bool) -> list[tuple[Any, ...]]:
        """Where results go; notes those that are states."""
        places = self.plan.memory.places
        results = self.plan.graph.outputs if wanted else {}
        self._states: dict[str, Value] = {
            k: v for k, v in results.items() if places[v].kind == "state"
        }
        staged = PinnedTensors({k: v.spec for k, v in results.items() if k not in self._states})
        self._results = staged.arrays
        return [
            (staged.pinned, at, *self._place(name))
            for name, at in staged.offsets.items()
            if results[name].spec.size
        ]

    def device(self, name: str) -> DeviceTensor:
        """An output, or else an input, in device memory, to be shared with other libraries.

        An output holds until the next run of a plan on the same pools. An input that was not given
        as an array is overwritten by each run, from `inputs`. Raises BackendError for an unknown
        name."""
        outputs = self.plan.graph.outputs
        if name in outputs:
            memory, offset, _ = self._place(name)
            return DeviceTensor(memory, offset, outputs[name].spec)
        if name not in self._input_regions:
            known = sorted({*outputs, *self._input_regions})
            raise BackendError(f"cuda: the plan's inputs and outputs are {known}, got {name!r}")
        memory, offset, _ = self._input_regions[name]
        return DeviceTensor(memory, offset, self.plan.inputs[name])

    @property
    def outputs(self) -> dict[str, np.ndarray]:  # type: ignore[override]
        """Results of the last run."""
        if not self._states:
            return self._results
        fetched = {k: self._fetched(v) for k, v in self._states.items()}
        return {
            k: fetched[k] if k in fetched else self._results[k] for k in self.plan.graph.outputs
        }

    def _fetched(self, value: Value) -> np.ndarray:
        place = self.plan.memory.places[value]
        return shaped(self.pools.raw(place.name), place.offset, value.spec)

    def put(self, name: str, pieces: Sequence[np.ndarray]) -> None:
        """Set an input to the rows of arrays that follow one another; what lies in pinned memory,
        such as another plan's outputs, goes to the card from there."""
        if name in self.inputs:
            super().put(name, pieces)
            return
        spec, (memory, offset, size), at = self.plan.inputs[name], self._input_regions[name], 0
        row = spec.storage_strides[0]
        with cuda_errors():
            for rows in pieces:
                end = require_rows(name, spec.storage_shape, at, rows)
                upload(memory, offset + at * row, np.ascontiguousarray(rows, spec.dtype.storage))
                at = end
            memory.fill(offset + at * row, size - at * row, 0)

    def start(self, stream: Any = None) -> None:
        """Put a run on a stream and return: the device's own, or one that the caller has (its
        handle, or a stream of torch or cupy). The caller's waits for what riverrun has on the
        device, and what riverrun puts there later waits for the run."""
        handle = None if stream is None else stream_handle(stream)
        with cuda_errors():
            self.native.start(handle)

    def finish(self) -> None:
        """Wait for what was started. Raises BackendError when the data of a run were bad."""
        with cuda_errors():
            failed = self.native.finish()
        if failed:
            raise BackendError(failed)

    def run(self, rows: int | None = None, stream: Any = None) -> None:
        """Run once: copies in, kernels, copies out. Padding rows are computed like others.

        On a stream of the caller's it only starts: what comes later on that stream sees the
        results, `finish` waits for them, and raises what was wrong."""
        self.start(stream)
        if stream is None:
            self.finish()

    def profile(self, rows: int | None = None) -> list[tuple[str, int]]:
        """Run once, kernel by kernel; (op and name, nanoseconds) of every node."""
        with cuda_errors():
            failed, times = self.native.profile()
        if failed:
            raise BackendError(failed)
        return list(zip(self.plan.labels, times, strict=True))


def _whole(memory: Any) -> Region:
    return memory, 0, memory.size


class CudaBackend(NativeBackend):
    """One NVIDIA card.

    index: of the card; graphs: whether runs are recorded as CUDA graphs, by default what the
    environment's RIVERRUN_CUDA_GRAPHS says. Raises BackendError without CUDA kernels, driver or
    card, and for a card that the kernels were not built for."""

    # A table that is plain in one plan and packed in another would be on the card twice.
    packs_tables = True

    def __init__(self, index: int = 0, graphs: bool | None = None) -> None:
        self.card = _open_card(index)
        self.module = _cuda
        # Else products of prompts would need weights as they are in the file beside packed ones.
        self.packed_layouts = (ROWS8,) if serves_warpgroups(index) else ()
        self.name = name_of(index)
        self.graphs = os.environ.get(GRAPHS, "1") != "0" if graphs is None else graphs
        self.overlap = os.environ.get(OVERLAP, "1") != "0"
        self.use(_cuda.KernelTable.all())
        self.capabilities = Capabilities(
            on_host=False,
            runs_ahead=True,
            prompt_chunk=PROMPT_CHUNK,
            prompt_exact=self.row_exact,
            joins_prompts=True,
            places_inputs=True,
        )

    def native_plan(self, steps: list[tuple[Any, ...]], n_buffers: int) -> Any:
        """A plan whose nodes are launched by one thread."""
        return _cuda.Plan(steps, n_buffers, 1)

    def compile(self, graph: Graph, kind: str = "step") -> CudaPlan:
        """Choose kernels, assign memory; fused nodes that no kernel takes are expanded.

        Raises Unsupported naming the node and the reasons."""
        with cuda_errors():
            # Makes it the card of this thread, whose capabilities kernels ask for.
            _ = self.card.free_bytes
        return CudaPlan(self._ready(graph, kind), kind, self)

    def load_weights(
        self, weights: Mapping[str, HostTensor], progress: Callable[[int], None] | None = None
    ) -> CudaWeights:
        """Weights are copied when the first plan that reads them is bound. Raises BackendError
        for more than the card has room for."""
        wanted = sum(t.spec.nbytes for t in weights.values())
        require_free(self.card, wanted, "the model", "fewer layers on it (gpu_layers)")
        return CudaWeights(weights, self.card, progress)

    def pools(self, states: Mapping[str, TensorSpec]) -> CudaPools:
        """Device memory for these states. Raises BackendError where it does not fit."""
        return CudaPools(states, self.card)

    def copy_rate(self) -> float:
        """Bytes a second that copies within the card's memory move, read and written."""
        with cuda_errors():
            size = min(1 << 30, self.card.free_bytes // 4)
            source, target = (_cuda.CardMemory(self.card, size) for _ in range(2))
            seconds = math.inf
            for _ in range(5):
                self.card.synchronize()
                began = time.perf_counter()
                target.copy(0, source, 0, size)
                self.card.synchronize()
                seconds = min(seconds, time.perf_counter() - began)
        return 2 * size / seconds

    def empty(self, shape: tuple[int, ...], dtype: DType | str = f32) -> DeviceTensor:
        """Memory of the card's own for a tensor, zero when made: for the `arrays` and `results` of
        plans, and for other libraries to fill. Raises BackendError where it does not fit."""
        spec = TensorSpec(tuple(shape), to_dtype(dtype))
        with cuda_errors():
            return DeviceTensor(_cuda.CardMemory(self.card, max(spec.nbytes, ALIGN)), 0, spec)
