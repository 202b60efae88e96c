"""What a backend is: it says which nodes it takes, loads weights, and compiles graphs to plans."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ..graph import Graph, HostTensor, Node, TensorSpec, verify
from ..graph.codec import encode
from ..graph.errors import BackendError, GraphError, RequestError
from ..graph.memory import MemoryPlan
from ..graph.passes.dce import eliminate
from .huge_pages import huge_pages

KINDS = ("step", "prefill")
Made = TypeVar("Made")


@dataclass(frozen=True)
class Support:
    """A backend's answer about a node; a refusal always has its reason."""

    ok: bool
    why: str = ""


@dataclass(frozen=True)
class Capabilities:
    """What a backend is like, for those who plan how to use it.

    on_host: states lie in host memory. runs_ahead: `BoundPlan.start` returns before a run is over.
    threads: processor threads it computes with, None where that is no choice. prompt_chunk: the
    most tokens of a prompt in one pass of kind "prefill". prompt_exact: kernels of that kind are
    row-exact, so that a prompt gives the same bits however it is cut into passes. joins_prompts: a
    pass over the prompts of several sequences takes less time than one for each of them.
    places_inputs: `Plan.bind` takes `placed`, names of inputs that lie in a device's memory alone,
    and that `BoundPlan.put` sets."""

    on_host: bool = True
    runs_ahead: bool = False
    threads: int | None = None
    prompt_chunk: int = 512
    prompt_exact: bool = False
    joins_prompts: bool = False
    places_inputs: bool = False


Index = int | slice | tuple[int | slice, ...]
# Places in states, and copies of what was there, each with `nbytes`; by the state's name.
Parts = Mapping[str, Sequence[Index]]
KeptParts = Mapping[str, Sequence[Any]]
# Bytes of a device that stay free for what plans need while they run, and for other models.
SPARE = 512 << 20


class Pools:
    """The state memory of one session on one backend; zero when made, and it never moves.

    states: name -> flat uint8 storage, here in host memory; backends with memory of their own
    have pools of their own. Scratch is shared by the plans bound to these pools; fill: a byte that
    scratch is full of at each request, for checking kernels."""

    fill: int | None = None

    def __init__(self, specs: Mapping[str, TensorSpec]) -> None:
        self.specs = dict(specs)
        self.states: dict[str, Any] = {n: aligned(spec.nbytes) for n, spec in specs.items()}
        self._scratch: dict[str, Any] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all states."""
        return sum(s.nbytes for s in self.specs.values())

    def array(self, name: str) -> np.ndarray:
        """A state's storage for reading and writing: its spec's storage_shape, bf16 as uint16."""
        spec = self.specs[name]
        found: np.ndarray = self.states[name].view(spec.dtype.storage).reshape(spec.storage_shape)
        return found

    def read(self, name: str, at: Index, out: np.ndarray | None = None) -> np.ndarray:
        """A copy, in host memory, of the part of a state that an index of its first axes names; in
        `out`, an array of its shape and type, where there is one."""
        if out is None:
            return np.array(self.array(name)[at])
        out[...] = self.array(name)[at]
        return out

    def read_all(self, at: Index, out: Mapping[str, np.ndarray]) -> None:
        """The same part of several states, each into the array of its name."""
        for name, array in out.items():
            self.read(name, at, array)

    def write(self, name: str, at: Index, values: np.ndarray | int) -> None:
        """Set that part of a state."""
        self.array(name)[at] = values

    def copy(self, name: str, src: Index, dst: Index) -> None:
        """Copy one part of a state over another, on its device."""
        array = self.array(name)
        array[dst] = array[src]

    def kept_bytes(self, parts: Parts) -> int:
        """What `keep` takes for these."""
        size = 0
        for name, places in parts.items():
            spec = self.specs[name]
            whole = np.broadcast_to(np.empty((), spec.dtype.storage), spec.storage_shape)
            size += sum(whole[at].nbytes for at in places)
        return size

    def keep(self, parts: Parts) -> KeptParts:
        """Copies of parts of states, for `put_back`: on their device while more than SPARE bytes
        stay free there, else in host memory."""
        return {name: [self.read(name, at) for at in places] for name, places in parts.items()}

    def put_back(self, name: str, at: Index, kept: Any) -> None:
        """Set a part of a state to one of its shape that was kept."""
        self.write(name, at, kept)

    def to_host(self, name: str, kept: Any) -> Any:
        """What was kept of a state, in host memory; the same object where it lies there."""
        return kept

    def raw(self, name: str) -> np.ndarray:
        """A copy of a state's bytes, in host memory."""
        return np.array(self.states[name])

    def load(self, name: str, raw: np.ndarray) -> None:
        """Set all bytes of a state."""
        self.states[name][...] = raw

    def add(self, specs: Mapping[str, TensorSpec]) -> None:
        """Memory for further states."""
        self.specs |= specs
        self.states |= {n: aligned(spec.nbytes) for n, spec in specs.items()}

    def scratch(self, size: int, part: str = "arena") -> Any:
        """At least size bytes that any one run may use; larger requests get new memory. Parts of
        different names lie apart."""
        if part not in self._scratch or self._scratch[part].nbytes < size:
            self._scratch[part] = aligned(size)
        if self.fill is not None:
            self._scratch[part][...] = self.fill
        return self._scratch[part]

    def scratch_bytes(self, part: str = "arena") -> np.ndarray:
        """What scratch holds now, in host memory."""
        found: np.ndarray = self._scratch[part]
        return found


Allocate = Callable[[int, int], np.ndarray]
_allocate: ContextVar[Allocate | None] = ContextVar("_allocate", default=None)


def aligned(size: int, align: int = 64, *, filled: bool = False) -> np.ndarray:
    """Zeroed bytes that start at a multiple of align: what backends keep tensors in. filled: all
    of them will be written, so that huge pages cost no memory."""
    allocate = _allocate.get() or (huge_pages if filled else _plain)
    return allocate(size, align)


def _plain(size: int, align: int) -> np.ndarray:
    raw = np.zeros(size + align, np.uint8)
    skip = -raw.ctypes.data % align
    return raw[skip : skip + size]


@contextmanager
def allocating(allocate: Allocate) -> Iterator[None]:
    """Within, `aligned` takes memory from allocate(size, align) instead, in this thread only."""
    before = _allocate.set(allocate)
    try:
        yield
    finally:
        _allocate.reset(before)


class Weights:
    """Loaded weights: what `Backend.load_weights` gives and `Plan.bind` takes; plans and threads
    share them.

    tensors: all of them by name. progress: called with the bytes of each weight that is moved or
    rearranged, which happens when the first plan that reads it is bound; None for nobody."""

    def __init__(
        self,
        tensors: Mapping[str, HostTensor],
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.tensors, self.progress = dict(tensors), progress
        self._made: dict[Hashable, Any] = {}
        self._making = threading.RLock()

    def moved(self, nbytes: int) -> None:
        """Report progress."""
        if self.progress:
            self.progress(nbytes)

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What make() gave when it was first called for this key, by whichever thread."""
        with self._making:
            if key not in self._made:
                self._made[key] = make()
            found: Made = self._made[key]
            return found


class BoundPlan(ABC):
    """A plan with its memory: fill `inputs` in place, `run`, read `outputs` (valid until the next
    run of any plan on the same pools).

    launches: how many kernels a run launches on a device; None where that is not counted."""

    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    launches: int | None = None

    @abstractmethod
    def run(self, rows: int | None = None) -> None:
        """Run once. rows: how many rows of axis 0 are real; the rest is padding.

        Raises BackendError when a kernel reports a failure."""

    def put(self, name: str, pieces: Sequence[np.ndarray]) -> None:
        """Set an input to the rows of arrays [n, ...] that follow one another, and rows behind
        them to zero. The arrays stay as they are until the next run is over. Raises RequestError
        where they do not fit."""
        into, at = self.inputs[name], 0
        for rows in pieces:
            end = require_rows(name, into.shape, at, rows)
            into[at:end], at = rows, end
        into[at:] = 0

    def start(self) -> None:
        """Begin a run over all rows. Inputs stay as they are, and outputs are not read, until
        `finish`; plans on the same pools may be started meanwhile and run in order."""
        self.run()

    def finish(self) -> None:  # noqa: B027
        """Wait for what was started. Raises BackendError when it failed."""

    def profile(self, rows: int | None = None) -> list[tuple[str, int]]:
        """Run once; (op and name, nanoseconds) of every node that is neither leaf nor view, in
        order. Nothing where a backend does not time its nodes."""
        self.run(rows)
        return []


class Plan(ABC):
    """A compiled graph, immutable; `bind` attaches weights and pools.

    Threads may share a plan: each binds it to pools of its own, or calls it, one at a time."""

    def __init__(self, graph: Graph, kind: str) -> None:
        self.graph, self.kind = graph, kind
        leaves = [n for n in graph.nodes if n.is_leaf]
        self.inputs = {n.name: n.specs[0] for n in leaves if n.op.name == "input"}
        self.states = {n.name: n.specs[0] for n in leaves if n.op.name == "state"}
        self.constants = {n.name: n.specs[0] for n in leaves if n.op.name == "constant"}
        self._own: BoundPlan | None = None
        self._calling = threading.Lock()

    memory: MemoryPlan
    # Of a plan of kind "prefill": its values stay the same, bit for bit, with other sequences in
    # the pass, and with passes that end elsewhere, at absolute multiples of so many positions; 0
    # where they may not.
    prompt_grid: int = 0
    # Op, isa, priority and row_exact of the kernel of each node in order, where there are kernels.
    chosen: Sequence[tuple[str, str, int, bool]] = ()

    @abstractmethod
    def bind(self, weights: Any, pools: Pools) -> BoundPlan:
        """Attach loaded weights and a session's pools."""

    @abstractmethod
    def own_weights(self) -> Weights:
        """The graph's own constants, loaded."""

    def pools(self) -> Pools:
        """New memory for the plan's states."""
        return Pools(self.states)

    def __call__(self, *unnamed: Any, **inputs: Any) -> Any:
        """Run once on the plan's own memory: `plan(x=array)`. Threads may call it at the same
        time: the runs take turns, and each call gets the results of its own inputs.

        Returns the output as a fresh array, or a dict by name when there are several.
        Inputs are values; those of a bf16 or block type are encoded. Raises RequestError for
        inputs without a name; GraphError for missing, unknown or misshapen ones, for what is no
        number, and for fractions and numbers out of range where integers are due."""
        takes = f"plan of graph {self.graph.name!r}: takes inputs {sorted(self.inputs)}"
        if unnamed:
            raise RequestError(f"{takes} by name, as in plan(x=array); got {len(unnamed)} without")
        if set(inputs) != set(self.inputs):
            raise GraphError(f"{takes}, got {sorted(inputs)}")
        stored = {k: _stored(k, v, self.inputs[k]) for k, v in inputs.items()}
        with self._calling:
            if self._own is None:
                self._own = self.bind(self.own_weights(), self.pools())
            for name, array in stored.items():
                self._own.inputs[name][...] = array
            self._own.run()
            results = {k: np.array(v) for k, v in self._own.outputs.items()}
        return results if len(results) != 1 else next(iter(results.values()))

    def __repr__(self) -> str:
        takes = ", ".join(f"{name} {spec}" for name, spec in self.inputs.items())
        gives = ", ".join(f"{name} {value.spec}" for name, value in self.graph.outputs.items())
        nodes = sum(not (n.is_leaf or n.op.view) for n in self.graph.nodes)
        name = f"{type(self).__name__} {self.graph.name!r} {self.kind}"
        return f"<{name}: {nodes} nodes, ({takes}) -> ({gives})>"


def _stored(name: str, given: Any, spec: TensorSpec) -> np.ndarray:
    """An input's values as its storage."""
    try:
        values = np.asarray(given)
    except (ValueError, TypeError) as error:
        raise GraphError(f"input {name!r} should be an array {spec}: {error}") from None
    if values.shape != spec.shape:
        raise GraphError(f"input {name!r} should have shape {spec.shape}, got {values.shape}")
    target = spec.dtype.numpy or np.dtype(np.float32)
    if values.size and {target.kind, values.dtype.kind} <= {"i", "u"}:
        least, most, fits = values.min(), values.max(), np.iinfo(target)
        if not fits.min <= least <= most <= fits.max:
            raise GraphError(f"input {name!r} should hold {spec.dtype}, got {least} to {most}")
    elif values.size and not np.can_cast(values.dtype, target, "same_kind"):
        raise GraphError(f"input {name!r} should hold {spec.dtype}, got {values.dtype}")
    if spec.dtype.numpy is None:
        return encode(spec.dtype, values).view(spec.dtype.storage).reshape(spec.storage_shape)
    return values


class Backend(ABC):
    """One device kind. Instances are given to sessions; there is no global device. Threads may
    share them."""

    name: str
    capabilities: Capabilities = Capabilities()
    # Per kernel that it chooses from: op, isa, priority, row_exact, prompt_exact, bound. Empty
    # where ops are not made of kernels.
    kernels: Sequence[Mapping[str, Any]] = ()

    @property
    def on_host(self) -> bool:
        """Whether states lie in host memory."""
        return self.capabilities.on_host

    @property
    def runs_ahead(self) -> bool:
        """Whether `start` returns before a run is over."""
        return self.capabilities.runs_ahead

    @property
    def threads(self) -> int | None:
        """Processor threads it computes with, None where that is no choice."""
        return self.capabilities.threads

    def __repr__(self) -> str:
        threads = f", threads {self.threads}" if self.threads else ""
        return f"<{type(self).__name__} {self.name!r}{threads}>"

    @abstractmethod
    def supports(self, node: Node) -> Support:
        """Whether this backend takes a node, without side effect."""

    @abstractmethod
    def compile(self, graph: Graph, kind: str = "step") -> Plan:
        """An immutable plan. kind "step": every kernel row-exact; "prefill": faster forms allowed.

        Raises Unsupported naming nodes and reasons."""

    @abstractmethod
    def load_weights(
        self, weights: Mapping[str, HostTensor], progress: Callable[[int], None] | None = None
    ) -> Weights:
        """Weights for this backend's plans to be bound to, shared by all plans and sessions.

        progress: what their `progress` is at first."""

    def share_threads(self, other: Backend) -> None:  # noqa: B027
        """Compute with the threads of a backend that never computes at the same time, where both
        are of one kind and number: threads that wait for the next job would keep those that have
        one from the processors. Holds for plans that are bound later."""

    def pools(self, states: Mapping[str, TensorSpec]) -> Pools:
        """Memory for these states, where this backend's plans work on them.

        Raises BackendError, naming what is needed and what there is, where it does not fit."""
        return Pools(states)

    def copy_rate(self) -> float | None:
        """Bytes a second, read and written ones both counted, that copies within its own memory
        move, measured now; None for backends in host memory."""
        return None

    def fma_rate(self) -> float | None:
        """f32 operations a second that its threads reach at best, measured now; None where that
        is not known."""
        return None


def prepare(graph: Graph, kind: str) -> Graph:
    """Verify, drop dead nodes, and verify what is left. Raises GraphError, also for a graph that
    neither has outputs nor writes states."""
    if kind not in KINDS:
        raise BackendError(f"kind should be one of {', '.join(KINDS)}, got {kind!r}")
    verify(graph)
    live = eliminate(graph)
    if all(node.is_leaf for node in live.nodes) and not live.outputs:
        raise GraphError(
            f"graph {graph.name!r} has no outputs; name one with g.output(name, value)"
        )
    if len(live.nodes) < len(graph.nodes):
        verify(live)
    return live


def require_rows(name: str, shape: tuple[int, ...], at: int, rows: np.ndarray) -> int:
    """Where rows end that go into an input of this shape from `at` on. Raises RequestError where
    they do not fit."""
    end = at + len(rows)
    if end > shape[0] or rows.shape[1:] != shape[1:]:
        raise RequestError(
            f"input {name!r} should have {shape[0]} rows of {shape[1:]}, got {rows.shape} behind "
            f"{at}"
        )
    return end


def require_weights(plan: Plan, weights: Mapping[str, HostTensor]) -> None:
    """Raise GraphError when a constant has no data or other specs than the graph says.

    Constants that weights lack may have their data in the graph."""
    for name, spec in plan.constants.items():
        data = weights.get(name, plan.graph.data.get(name))
        if data is None:
            raise GraphError(f"no data for constant {name!r} {spec}")
        if data.spec != spec:
            raise GraphError(f"constant {name!r} should be {spec}, its data is {data.spec}")
