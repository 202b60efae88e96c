"""Arrays of a card that other libraries read and write in place, and theirs that plans do.

Both ways by DLPack (https://dmlc.github.io/dlpack) and by the CUDA array interface, version 3
(https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html). What one side enqueued is
waited for on the card, never on the host."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..graph import TensorSpec
from ..graph.dtype import DType
from ..graph.errors import BackendError

CUDA = 2  # DLPack's number of the device kind
LEGACY = 1  # the default stream, in both protocols
ALIGNMENT = 64  # bytes; what kernels count on where a value begins
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_BFLOAT = 4
Region = tuple[Any, int, int]  # memory, offset, bytes
Layout = tuple[tuple[int, ...], tuple[int, ...]]  # shape, byte strides


class DeviceTensor:
    """A tensor in a card's memory: `torch.from_dlpack(t)` and `cupy.asarray(t)` share it.

    shape, dtype: the spec's; bf16 is bfloat16 to DLPack and uint16 to the CUDA array interface,
    block types are uint8 with the bytes of a row as their last axis. The memory is kept as long as
    anybody holds the tensor or a view of it."""

    def __init__(self, memory: Any, offset: int, spec: TensorSpec) -> None:
        self.memory, self.offset, self.spec = memory, offset, spec

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        """The element or block type."""
        return self.spec.dtype

    @property
    def device(self) -> str:
        """The card: "cuda:0"."""
        return f"cuda:{self.memory.card.index}"

    @property
    def address(self) -> int:
        """Where the first element lies in the card's memory."""
        return int(self.memory.address) + self.offset

    def numpy(self) -> np.ndarray:
        """A copy in host memory, once what the card has to do is done; bf16 as uint16."""
        raw = np.empty(self.spec.span, np.uint8)
        self.memory.read(self.offset, raw)
        if self.spec.size == 0:
            return np.empty(self.spec.storage_shape, self.dtype.storage)
        shape, strides = self.spec.storage_shape, self.spec.storage_strides
        return np.array(np.ndarray(shape, self.dtype.storage, raw.data, 0, strides))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.spec.storage_shape,
            "typestr": self.dtype.storage.str,
            "data": (self.address if self.spec.size else 0, False),
            "strides": None if self.spec.contiguous else self.spec.storage_strides,
            "stream": self.memory.card.stream,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        """Kind and index of the device: (2, card)."""
        return CUDA, self.memory.card.index

    def __dlpack__(
        self,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule "dltensor" of this memory. stream: of the consumer, which waits for what the
        card has been given to do: None and 1 the default one, 2 the thread's own, -1 waits for
        nothing. Raises BufferError for a copy and for another device."""
        if copy:
            raise BufferError("the array is shared as it is; copy what from_dlpack gives")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the array is on {self.device} and is shared there alone")
        if stream == 0:
            raise ValueError("stream 0 is ambiguous: 1 is the default stream, 2 the thread's own")
        if stream != -1:
            self.memory.card.precede(LEGACY if stream is None else stream)
        code, bits, _ = dlpack_type(self.dtype)
        item = self.dtype.storage.itemsize
        strides = [s // item for s in self.spec.storage_strides]
        return self.memory.dlpack(self.offset, code, bits, self.spec.storage_shape, strides)

    def __repr__(self) -> str:
        return f"DeviceTensor({self.spec}, {self.device})"


def dlpack_type(dtype: DType) -> tuple[int, int, int]:
    """DLPack's code, bits and lanes of a type's storage."""
    kind = dtype.storage
    return (_BFLOAT if dtype.name == "bf16" else _CODES[kind.kind]), 8 * kind.itemsize, 1


def stream_handle(stream: Any) -> int:
    """A CUDA stream's handle, 0 and 1 being the default stream: a number, or what torch
    (`cuda_stream`), cupy (`ptr`) and others (`__cuda_stream__`) have for streams. Raises
    BackendError for anything else."""
    if hasattr(stream, "__cuda_stream__"):
        found = stream.__cuda_stream__
        stream = (found() if callable(found) else found)[1]
    for name in ("cuda_stream", "ptr"):
        stream = getattr(stream, name, stream)
    try:
        handle = int(stream)
    except (TypeError, ValueError):
        handle = -1
    if handle < 0:
        raise BackendError(
            f"cuda: expected a stream's handle or a stream of torch or cupy, got {stream!r}"
        )
    return handle


def borrowed(card: Any, what: str, array: Any, spec: TensorSpec) -> Region:
    """Another library's array as a region that keeps it alive; the card's
    stream waits for what its owner has enqueued.

    what: its name in messages. Raises BackendError where it lies elsewhere, or differs from the
    spec in shape, type or strides."""
    if hasattr(array, "__dlpack_device__"):
        device = tuple(int(n) for n in array.__dlpack_device__())
        _require_card(card, what, device)
        try:
            owner = card.received(array.__dlpack__(stream=card.stream))
        except BufferError as error:
            raise BackendError(f"cuda: {what} cannot be shared: {error}") from None
        item = owner.dtype[1] * owner.dtype[2] // 8
        _require_type(what, owner.dtype, spec)
        strides = owner.strides and tuple(n * item for n in owner.strides)
        address, layout = owner.address, _layout(owner.shape, strides, item)
    elif hasattr(array, "__cuda_array_interface__"):
        owner, found = array, array.__cuda_array_interface__
        address, layout = _interface(card, what, found, spec)
        if found.get("stream") is not None:
            card.follow(found["stream"])
    else:
        raise BackendError(
            f"cuda: {what} should be an array in device memory, with __dlpack__ or "
            f"__cuda_array_interface__, got {type(array).__name__}"
        )
    _require_layout(what, layout, spec)
    if spec.size and address % ALIGNMENT:
        raise BackendError(
            f"cuda: {what} should begin at a multiple of {ALIGNMENT} bytes, begins at {address:#x}"
            "; give a copy of the part that is meant"
        )
    return card.borrow(address, spec.span, owner), 0, spec.span


def _interface(card: Any, what: str, found: Any, spec: TensorSpec) -> tuple[int, Layout]:
    """Address and layout that a __cuda_array_interface__ tells of."""
    if found.get("mask") is not None:
        raise BackendError(f"cuda: {what} has a mask, which plans do not read; give it without")
    kind = np.dtype(found["typestr"])
    code = _CODES.get(kind.kind, -1)
    _require_type(what, (code, 8 * kind.itemsize, 1), spec)
    address, shape = int(found["data"][0]), tuple(found["shape"])
    if spec.size and math.prod(shape):
        index = card.of(address)
        _require_card(card, what, (CUDA, index) if index >= 0 else (1, 0))
    return address, _layout(shape, found.get("strides"), kind.itemsize)


def _layout(shape: tuple[int, ...], strides: tuple[int, ...] | None, item: int) -> Layout:
    if strides is None:
        steps = [item * math.prod(shape[i + 1 :]) for i in range(len(shape))]
        return tuple(shape), tuple(steps)
    return tuple(shape), tuple(strides)


def _require_card(card: Any, what: str, device: tuple[int, ...]) -> None:
    if device == (CUDA, card.index):
        return
    kind = "host memory" if device[0] == 1 else f"a device of DLPack's kind {device[0]}"
    where = f"cuda:{device[1]}" if device[0] == CUDA else kind
    raise BackendError(
        f"cuda: {what} should be on cuda:{card.index}, is in {where}; copy it to that card first"
    )


def _require_type(what: str, found: tuple[int, ...], spec: TensorSpec) -> None:
    storage = spec.dtype.storage
    plain = (_CODES[storage.kind], 8 * storage.itemsize, 1)
    if found in (dlpack_type(spec.dtype), plain):
        return
    names = {0: "int", 1: "uint", 2: "float", _BFLOAT: "bfloat", 5: "complex", 6: "bool"}
    lanes = f"x{found[2]}" if found[2] != 1 else ""
    got = f"{names.get(found[0], 'type')}{found[1]}{lanes}"
    raise BackendError(f"cuda: {what} should hold {spec.dtype}, holds {got}; convert it first")


def _require_layout(what: str, layout: Layout, spec: TensorSpec) -> None:
    (shape, strides), wanted = layout, spec.storage_shape
    if shape != wanted:
        raise BackendError(
            f"cuda: {what} should have shape {wanted}, has {shape}; reshape or cut it first"
        )
    used = zip(shape, strides, spec.storage_strides, strict=True)
    if spec.size and any(n > 1 and got != want for n, got, want in used):
        raise BackendError(
            f"cuda: {what} should have byte strides {spec.storage_strides}, has {strides}; give a "
            "contiguous copy"
        )
