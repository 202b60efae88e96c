"""The CUDA backend: kernels of the optional module `_cuda`, a recorded graph a run."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

try:
    from .. import _cuda
except ImportError as error:
    _cuda = None  # type: ignore[assignment]
    _MISSING = str(error)

from ..graph import Graph, HostTensor, TensorSpec, Value
from ..graph.errors import BackendError, GraphError
from .base import BoundPlan, Index, Pools, require_weights
from .native import PLAIN, NativeBackend, NativePlan, NativeWeights, packed

GRAPHS = "RIVERRUN_CUDA_GRAPHS"  # 0: launch every kernel anew in every run
OVERLAP = "RIVERRUN_CUDA_OVERLAP"  # 0: a kernel begins when the one before it has ended
OLDEST = 8  # major compute capability: kernels use bf16 products and copies in the background
_ALIGN = 256
_BUILD = (
    "install riverrun with its CUDA kernels: pip install . -C cmake.define.RIVERRUN_CUDA=ON, "
    "which needs the CUDA toolkit's nvcc"
)


@contextmanager
def _told() -> Iterator[None]:
    """Errors of CUDA as BackendError."""
    try:
        yield
    except _cuda.CudaError as error:
        raise BackendError(f"cuda: {error}") from None


def built() -> bool:
    """Whether this build of riverrun has CUDA kernels."""
    return _cuda is not None


def emulated() -> bool:
    """Whether those kernels run on the processor, for checking them without a card."""
    return built() and bool(_cuda.emulated)


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


def describe(card: Mapping[str, Any]) -> str:
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
        if form != "virtual" and own[0] == major and own[1] <= minor:
            return True
        if form != "real" and own <= (major, minor):
            return True
    return False


def _open_card(index: int) -> Any:
    found = cards()
    if not 0 <= index < len(found):
        raise BackendError(
            f"cuda:{index} is not there; this machine's devices: cuda:0 to cuda:{len(found) - 1}"
        )
    card, archs = found[index], _cuda.architectures
    if not serves(archs, card["major"], card["minor"]):
        wanted = f"{card['major']}{card['minor']}"
        remedy = f"build with -C cmake.define.CMAKE_CUDA_ARCHITECTURES={wanted}"
        if card["major"] < OLDEST:
            remedy = f"they need {OLDEST}.0 at least; use --device cpu"
        raise BackendError(
            f"cuda: {card['name']} has compute capability {card['major']}.{card['minor']}, and "
            f"riverrun's kernels were built for {archs}; {remedy}"
        )
    with _told():
        return _cuda.Card(index)


def free_bytes(index: int) -> int:
    """Bytes of a card's memory that nobody uses now. Raises BackendError as CudaBackend does."""
    with _told():
        return int(_open_card(index).free_bytes)


class CudaPools(Pools):
    """States in device memory."""

    def __init__(self, specs: Mapping[str, TensorSpec], card: Any) -> None:
        self.specs, self.states, self.card = {}, {}, card
        self._scratch: dict[str, Any] = {}
        self.add(specs)

    def add(self, specs: Mapping[str, TensorSpec]) -> None:
        """Memory for further states. Raises BackendError, before any is allocated, where the card
        has too little."""
        wanted = sum(s.nbytes for s in specs.values())
        _require_free(self.card, wanted, "the session's memory", "a smaller context (-c)")
        with _told():
            self.states |= {n: _cuda.CardMemory(self.card, s.nbytes) for n, s in specs.items()}
        self.specs |= specs

    def array(self, name: str) -> np.ndarray:
        """A copy of a state's storage: device memory cannot be written through an array."""
        spec = self.specs[name]
        return self.raw(name).view(spec.dtype.storage).reshape(spec.storage_shape)

    def read(self, name: str, at: Index) -> np.ndarray:
        """A copy, in host memory, of a part of a state."""
        shape, spans = self._spans(name, at)
        raw, done = np.empty(sum(n for _, n in spans), np.uint8), 0
        with _told():
            for start, n in spans:
                self.states[name].read(start, raw[done : done + n])
                done += n
        return raw.view(self.specs[name].dtype.storage).reshape(shape)

    def write(self, name: str, at: Index, values: np.ndarray | int) -> None:
        """Set a part of a state."""
        shape, spans = self._spans(name, at)
        with _told():
            if isinstance(values, int) and values == 0:
                for start, n in spans:
                    self.states[name].fill(start, n, 0)
                return
            kind = self.specs[name].dtype.storage
            whole = np.ascontiguousarray(np.broadcast_to(np.asarray(values, kind), shape))
            raw, done = whole.reshape(-1).view(np.uint8), 0
            for start, n in spans:
                self.states[name].write(start, raw[done : done + n])
                done += n

    def copy(self, name: str, src: Index, dst: Index) -> None:
        """Copy one part of a state over another; nothing passes through the host."""
        (shape, sources), (into, targets) = self._spans(name, src), self._spans(name, dst)
        if shape != into or [n for _, n in sources] != [n for _, n in targets]:
            raise BackendError(f"state {name!r}: a part of {shape} cannot be copied to {into}")
        memory = self.states[name]
        with _told():
            for (start, n), (target, _) in zip(sources, targets, strict=True):
                memory.copy(target, memory, start, n)

    def raw(self, name: str) -> np.ndarray:
        """A copy of a state's bytes."""
        return _bytes_of(self.states[name])

    def load(self, name: str, raw: np.ndarray) -> None:
        """Set all bytes of a state."""
        with _told():
            self.states[name].write(0, np.ascontiguousarray(raw))

    def scratch(self, size: int, part: str = "arena") -> Any:
        """Device memory of at least size bytes that any one run may use."""
        size = max(size, _ALIGN)
        with _told():
            if part not in self._scratch or self._scratch[part].size < size:
                self._scratch[part] = _cuda.CardMemory(self.card, size)
            found = self._scratch[part]
            if self.fill is not None:
                found.fill(0, found.size, self.fill)
        return found

    def scratch_bytes(self, part: str = "arena") -> np.ndarray:
        """A copy of what scratch holds now."""
        return _bytes_of(self._scratch[part])

    def _spans(self, name: str, at: Index) -> tuple[tuple[int, ...], list[tuple[int, int]]]:
        """The shape of a part of a state's storage, and (start, bytes) of its adjacent pieces."""
        spec = self.specs[name]
        axes = len(at) if isinstance(at, tuple) else 1
        lead, rest = spec.storage_shape[:axes], spec.storage_shape[axes:]
        item = math.prod(rest) * spec.dtype.storage.itemsize
        places = np.arange(math.prod(lead), dtype=np.int64).reshape(lead)[at]
        flat = places.reshape(-1)
        cuts = np.flatnonzero(np.diff(flat) != 1) + 1
        pieces = np.split(flat, cuts) if flat.size else []
        return (*places.shape, *rest), [(int(p[0]) * item, p.size * item) for p in pieces]


def _bytes_of(memory: Any) -> np.ndarray:
    raw = np.empty(memory.size, np.uint8)
    with _told():
        memory.read(0, raw)
    return raw


def _require_free(card: Any, wanted: int, what: str, remedy: str) -> None:
    """Raise BackendError, before anything is allocated, for more than the card has free."""
    with _told():
        free = card.free_bytes
    if wanted > free:
        raise BackendError(
            f"cuda: {what} needs {wanted / 2**20:.0f} MiB, and device {card.index} has "
            f"{free / 2**20:.0f} MiB free; use {remedy}"
        )


class CudaWeights(NativeWeights):
    """Weights in device memory, each copied there once, when a plan first needs it."""

    def __init__(
        self,
        tensors: Mapping[str, HostTensor],
        card: Any,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(tensors, progress)
        self.card = card
        self._there: dict[tuple[str, int], Any] = {}

    def buffer(self, name: str, layout: int) -> Any:
        """The device memory of a weight in a layout."""
        key = (name, layout)
        if key not in self._there:
            tensor = self.tensors[name]
            raw = tensor.raw if layout == PLAIN else packed(_cuda, tensor, layout)
            with _told():
                memory = _cuda.CardMemory(self.card, raw.nbytes)
                memory.write(0, raw)
                memory.constant = True
            self._there[key] = memory
            self.moved(tensor.spec.nbytes)
        return self._there[key]


class CudaPlan(NativePlan):
    """A plan of the module `_cuda`."""

    backend: CudaBackend

    def __init__(self, graph: Graph, kind: str, backend: CudaBackend) -> None:
        super().__init__(graph, kind, backend)
        self._constants = CudaWeights(graph.data, backend.card)

    def source(self, weights: CudaWeights, name: str) -> CudaWeights:
        """Where a constant's data are: the given weights, or the graph itself."""
        return weights if name in weights.tensors else self._constants

    def bind(self, weights: CudaWeights, pools: Pools) -> BoundCuda:
        """Attach weights and pools, and record the CUDA graph of a run. Raises GraphError for
        weights that do not fit and for pools that are not the backend's own."""
        require_weights(self, weights.tensors)
        if not isinstance(pools, CudaPools):
            raise GraphError("a plan on cuda is bound to pools that its backend's `pools` makes")
        return BoundCuda(self, weights, pools)

    def own_weights(self) -> CudaWeights:
        """The constants given while building."""
        return self._constants

    def pools(self) -> Pools:
        """New memory for the plan's states."""
        return self.backend.pools(self.states)


class _Lanes:
    """Values that go between host and device in every run: one piece of pinned memory."""

    def __init__(self, specs: Mapping[str, TensorSpec]) -> None:
        self.offsets: dict[str, int] = {}
        size = 0
        for name, spec in specs.items():
            self.offsets[name] = size
            size += -(-spec.span // _ALIGN) * _ALIGN
        self.size = size
        with _told():
            self.pinned = _cuda.PinnedMemory(size)
        raw = np.frombuffer(memoryview(self.pinned), np.uint8) if size else np.empty(0, np.uint8)
        self.arrays = {n: _shaped(raw, self.offsets[n], spec) for n, spec in specs.items()}


def _shaped(raw: np.ndarray, at: int, spec: TensorSpec) -> np.ndarray:
    kind = spec.dtype.storage
    if spec.size == 0:
        return np.empty(spec.storage_shape, kind)
    return np.ndarray(spec.storage_shape, kind, raw.data, at, spec.storage_strides)


class BoundCuda(BoundPlan):
    """A native plan with its device memory. Inputs and outputs are pinned host memory that the run
    copies from and to; outputs that are states are fetched when they are asked for."""

    def __init__(self, plan: CudaPlan, weights: CudaWeights, pools: CudaPools) -> None:
        self.plan, self.pools = plan, pools
        card = plan.backend.card
        lanes = _Lanes(plan.inputs)
        self.inputs = lanes.arrays
        with _told():
            memory = _cuda.CardMemory(card, max(lanes.size, _ALIGN))
        arena = pools.scratch(plan.memory.arena_bytes)
        workspace = pools.scratch(plan.native.workspace_bytes, "workspace")
        find: dict[str, Callable[[str, int], tuple[Any, int, int]]] = {
            "arena": lambda name, layout: (arena, 0, arena.size),
            "input": lambda name, layout: (memory, lanes.offsets[name], plan.inputs[name].span),
            "constant": lambda name, layout: _whole(
                plan.source(weights, name).buffer(name, layout)
            ),
            "state": lambda name, layout: _whole(pools.states[name]),
        }
        regions = [find[kind](name, layout) for kind, name, layout in plan.buffers]
        uploads = [(lanes.pinned, 0, memory, 0, lanes.size)] if lanes.size else []
        downloads = self._downloads(regions)
        with _told():
            self.native = plan.native.bind(
                card,
                regions,
                _whole(workspace),
                uploads,
                downloads,
                plan.backend.graphs,
                plan.backend.overlap,
            )

    def _downloads(self, regions: list[tuple[Any, int, int]]) -> list[tuple[Any, ...]]:
        """Where results go; notes those that are states."""
        places = self.plan.memory.places
        results = self.plan.graph.outputs
        self._states: dict[str, Value] = {
            k: v for k, v in results.items() if places[v].kind == "state"
        }
        computed = {k: v for k, v in results.items() if k not in self._states}
        lanes = _Lanes({k: v.spec for k, v in computed.items()})
        found = []
        for name, value in computed.items():
            place = places[value]
            memory, offset, _ = regions[self.plan.buffers[(place.kind, place.name, PLAIN)]]
            if value.spec.size:
                at = offset + place.offset
                found.append((lanes.pinned, lanes.offsets[name], memory, at, value.spec.span))
        self._results = {k: lanes.arrays[k] for k in results if k in lanes.arrays}
        return found

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
        return _shaped(self.pools.raw(place.name), place.offset, value.spec)

    def start(self) -> None:
        """Put a run on the device's stream and return."""
        with _told():
            self.native.start()

    def finish(self) -> None:
        """Wait for what was started. Raises BackendError when the data of a run were bad."""
        with _told():
            failed = self.native.finish()
        if failed:
            raise BackendError(failed)

    def run(self, rows: int | None = None) -> None:
        """Run once: copies in, kernels, copies out. Padding rows are computed like others."""
        self.start()
        self.finish()

    def profile(self, rows: int | None = None) -> list[tuple[str, int]]:
        """Run once, kernel by kernel; (op and name, nanoseconds) of every node."""
        with _told():
            failed, times = self.native.profile()
        if failed:
            raise BackendError(failed)
        return list(zip(self.plan.labels, times, strict=True))


def _whole(memory: Any) -> tuple[Any, int, int]:
    return memory, 0, memory.size


class CudaBackend(NativeBackend):
    """One NVIDIA card.

    index: of the card; graphs: whether runs are recorded as CUDA graphs, by default what the
    environment's RIVERRUN_CUDA_GRAPHS says. Raises BackendError without CUDA kernels, driver or
    card, and for a card that the kernels were not built for."""

    on_host = False
    runs_ahead = True
    packed_layouts = ()

    def __init__(self, index: int = 0, graphs: bool | None = None) -> None:
        self.card = _open_card(index)
        self.module = _cuda
        self.name = f"cuda:{index}" if index else "cuda"
        self.graphs = os.environ.get(GRAPHS, "1") != "0" if graphs is None else graphs
        self.overlap = os.environ.get(OVERLAP, "1") != "0"
        self.kernels = _cuda.kernels()
        self.table = _cuda.KernelTable.all()

    def native_plan(self, steps: list[tuple[Any, ...]], n_buffers: int) -> Any:
        """A plan whose nodes are launched by one thread."""
        return _cuda.Plan(steps, n_buffers, 1, self.table)

    def compile(self, graph: Graph, kind: str = "step") -> CudaPlan:
        """Choose kernels, assign memory; fused nodes that no kernel takes are expanded.

        Raises Unsupported naming the node and the reasons."""
        return CudaPlan(self._ready(graph, kind), kind, self)

    def load_weights(
        self, weights: Mapping[str, HostTensor], progress: Callable[[int], None] | None = None
    ) -> CudaWeights:
        """Weights are copied when the first plan that reads them is bound. Raises BackendError
        for more than the card has room for."""
        wanted = sum(t.spec.nbytes for t in weights.values())
        _require_free(self.card, wanted, "the model", "fewer layers on it (--gpu-layers)")
        return CudaWeights(weights, self.card, progress)

    def pools(self, states: Mapping[str, TensorSpec]) -> CudaPools:
        """Device memory for these states. Raises BackendError where it does not fit."""
        return CudaPools(states, self.card)
