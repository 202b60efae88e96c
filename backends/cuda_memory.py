"""Memory of a card: states, weights, and what goes between it and the host in every run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

try:
    from .. import _cuda
except ImportError:
    _cuda = None  # type: ignore[assignment]

from ..graph import HostTensor, TensorSpec
from ..graph.errors import BackendError
from .base import Index, KeptParts, Parts, Pools, Weights
from .cuda_kept import KeptMemory, KeptPart
from .native import PLAIN, Packing

ALIGN = 256


@contextmanager
def cuda_errors() -> Iterator[None]:
    """Errors of CUDA as BackendError."""
    try:
        yield
    except _cuda.CudaError as error:
        raise BackendError(f"cuda: {error}") from None


class CudaPools(Pools):
    """States in device memory."""

    def __init__(self, specs: Mapping[str, TensorSpec], card: Any) -> None:
        self.specs, self.states, self.card = {}, {}, card
        self._scratch: dict[str, Any] = {}
        self._kept = KeptMemory(card)
        self.add(specs)

    def add(self, specs: Mapping[str, TensorSpec]) -> None:
        """Memory for further states. Raises BackendError, before any is allocated, where the card
        has too little."""
        wanted = sum(s.nbytes for s in specs.values())
        require_free(self.card, wanted, "the session's memory", "a smaller context (n_ctx)")
        with cuda_errors():
            self.states |= {n: _cuda.CardMemory(self.card, s.nbytes) for n, s in specs.items()}
        self.specs |= specs

    def array(self, name: str) -> np.ndarray:
        """A copy of a state's storage: device memory cannot be written through an array."""
        spec = self.specs[name]
        return self.raw(name).view(spec.dtype.storage).reshape(spec.storage_shape)

    def read(self, name: str, at: Index, out: np.ndarray | None = None) -> np.ndarray:
        """A copy, in host memory, of a part of a state."""
        (shape, spans), done = self._spans(name, at), 0
        if out is None:
            out = np.empty(shape, self.specs[name].dtype.storage)
        raw = out.reshape(-1).view(np.uint8)
        with cuda_errors():
            for start, n in spans:
                self.states[name].read(start, raw[done : done + n])
                done += n
        return out

    def read_all(self, at: Index, out: Mapping[str, np.ndarray]) -> None:
        """The same part of several states, through pinned memory."""
        pieces = [
            (self.states[name], start, array.reshape(-1).view(np.uint8)[offset : offset + n])
            for name, array in out.items()
            for offset, start, n in _placed(self._spans(name, at)[1])
        ]
        with cuda_errors():
            self._kept.read(pieces)

    def write(self, name: str, at: Index, values: np.ndarray | int) -> None:
        """Set a part of a state."""
        shape, spans = self._spans(name, at)
        with cuda_errors():
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
        with cuda_errors():
            for (start, n), (target, _) in zip(sources, targets, strict=True):
                memory.copy(target, memory, start, n)

    def kept_bytes(self, parts: Parts) -> int:
        """What `keep` takes for these."""
        each = (self._spans(name, at)[1] for name, places in parts.items() for at in places)
        return sum(n for spans in each for _, n in spans)

    def keep(self, parts: Parts) -> KeptParts:
        """Copies of parts of states, made when the card comes to it; nobody waits for them."""
        kept: dict[str, list[KeptPart]] = {name: [] for name in parts}
        with cuda_errors():
            lent, done = self._kept.lend(self.kept_bytes(parts)), 0
            for name, places in parts.items():
                for at in places:
                    shape, spans = self._spans(name, at)
                    part = KeptPart(lent, done, sum(n for _, n in spans), shape)
                    for offset, start, n in _placed(spans):
                        part.copy_from(self.states[name], start, n, offset)
                    done += part.nbytes
                    kept[name].append(part)
        return kept

    def put_back(self, name: str, at: Index, kept: Any) -> None:
        """Set a part of a state to one that was kept, wherever that is."""
        if not isinstance(kept, KeptPart):
            self.write(name, at, kept)
            return
        shape, spans = self._spans(name, at)
        if sum(n for _, n in spans) != kept.nbytes:
            raise BackendError(f"state {name!r}: {kept.nbytes} bytes were kept, not {shape}")
        with cuda_errors():
            for offset, start, n in _placed(spans):
                kept.copy_to(self.states[name], start, n, offset)

    def to_host(self, name: str, kept: Any) -> Any:
        """What was kept of a state, in host memory; what lies there stays."""
        if not isinstance(kept, KeptPart):
            return kept
        with cuda_errors():
            raw = self._kept.raw(kept)
        return raw.view(self.specs[name].dtype.storage).reshape(kept.shape)

    def raw(self, name: str) -> np.ndarray:
        """A copy of a state's bytes."""
        return _bytes_of(self.states[name])

    def load(self, name: str, raw: np.ndarray) -> None:
        """Set all bytes of a state."""
        with cuda_errors():
            self.states[name].write(0, np.ascontiguousarray(raw))

    def scratch(self, size: int, part: str = "arena") -> Any:
        """Device memory of at least size bytes that any one run may use."""
        size = max(size, ALIGN)
        with cuda_errors():
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
        if (
            isinstance(at, tuple)
            and at
            and all(_within(i, n) for i, n in zip(at, lead, strict=True))
        ):
            place = 0
            for i, n in zip(at, lead, strict=True):
                place = place * n + i  # type: ignore[operator]
            return rest, [(place * item, item)]
        places = np.arange(math.prod(lead), dtype=np.int64).reshape(lead)[at]
        flat = places.reshape(-1)
        cuts = np.flatnonzero(np.diff(flat) != 1) + 1
        pieces = np.split(flat, cuts) if flat.size else []
        return (*places.shape, *rest), [(int(p[0]) * item, p.size * item) for p in pieces]


def _placed(spans: list[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """(offset in all of them, start, bytes) of each piece."""
    offset = 0
    for start, n in spans:
        yield offset, start, n
        offset += n


def _within(i: int | slice, n: int) -> bool:
    """Whether it is a place of n, counted from the first."""
    return isinstance(i, int) and 0 <= i < n


def _bytes_of(memory: Any) -> np.ndarray:
    raw = np.empty(memory.size, np.uint8)
    with cuda_errors():
        memory.read(0, raw)
    return raw


def require_free(card: Any, wanted: int, what: str, remedy: str) -> None:
    """Raise BackendError, before anything is allocated, for more than the card has free."""
    if not wanted:
        return
    with cuda_errors():
        free = card.free_bytes
    if wanted > free:
        raise BackendError(
            f"cuda: {what} needs {wanted / 2**20:.0f} MiB, and device {card.index} has "
            f"{free / 2**20:.0f} MiB free; use {remedy}"
        )


def _write_packed(memory: Any, packing: Packing) -> None:
    """Piece by piece, through host memory of one of each size."""
    room = cache(lambda size: np.empty(size, np.uint8))
    for at, piece in packing.pack(lambda _, size: room(size)):
        memory.write(at, piece)


class CudaWeights(Weights):
    """Weights in device memory, each copied there once, when a plan first needs it."""

    def __init__(
        self,
        tensors: Mapping[str, HostTensor],
        card: Any,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(tensors, progress)
        self.card = card

    def buffer(self, name: str, layout: int) -> Any:
        """The device memory of a weight in a layout."""
        return self.once((name, layout), lambda: self._copied(self.tensors[name], layout))

    def _copied(self, tensor: HostTensor, layout: int) -> Any:
        packing = None if layout == PLAIN else Packing(_cuda, tensor, layout)
        with cuda_errors():
            memory = _cuda.CardMemory(self.card, (packing or tensor.raw).nbytes)
            if packing is None:
                memory.write(0, tensor.raw)
            else:
                _write_packed(memory, packing)
            memory.constant = True
        self.moved(tensor.spec.nbytes)
        return memory


class PinnedTensors:
    """Values that go between host and device in every run: one piece of pinned memory."""

    def __init__(self, specs: Mapping[str, TensorSpec]) -> None:
        self.offsets: dict[str, int] = {}
        size = 0
        for name, spec in specs.items():
            self.offsets[name] = size
            size += -(-spec.span // ALIGN) * ALIGN
        self.size = size
        with cuda_errors():
            self.pinned = _cuda.PinnedMemory(size)
        raw = np.frombuffer(memoryview(self.pinned), np.uint8) if size else np.empty(0, np.uint8)
        self.arrays = {n: shaped(raw, self.offsets[n], spec) for n, spec in specs.items()}


def upload(memory: Any, at: int, array: np.ndarray) -> None:
    """Copy an array without gaps to a byte of a card's memory. One that lies in pinned memory goes
    from there when the card comes to it, and should stay as it is until then."""
    raw, pinned = array.reshape(-1).view(np.uint8), _pinned(array)
    if pinned is None:
        memory.write(at, raw)
        return
    first = np.frombuffer(memoryview(pinned), np.uint8)
    memory.write_later(at, pinned, raw.ctypes.data - first.ctypes.data, raw.nbytes)


def _pinned(array: np.ndarray) -> Any:
    """The pinned memory that an array is part of, None for others."""
    owner: Any = array
    while isinstance(owner, (np.ndarray, memoryview)):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    return owner if isinstance(owner, _cuda.PinnedMemory) else None


def shaped(raw: np.ndarray, at: int, spec: TensorSpec) -> np.ndarray:
    """The storage of a tensor that begins at a byte of raw."""
    kind = spec.dtype.storage
    if spec.size == 0:
        return np.empty(spec.storage_shape, kind)
    return np.ndarray(spec.storage_shape, kind, raw.data, at, spec.storage_strides)
