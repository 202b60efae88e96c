"""What the graph knows of a tensor: shape, dtype, byte strides."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from .dtype import DType, dtype, f32
from .errors import GraphError, ShapeError

MAX_RANK = 6


def contiguous_strides(shape: tuple[int, ...], dtype: DType) -> tuple[int, ...]:
    """Byte strides of a row-major tensor; of a block type, the last one is the block's bytes."""
    if not shape:
        return ()
    strides = [dtype.nbytes]
    step = dtype.row_bytes(shape[-1]) if dtype.quantized else dtype.nbytes * shape[-1]
    for extent in reversed(shape[:-1]):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


@dataclass(frozen=True)
class TensorSpec:
    """Shape (row-major, last axis fastest), dtype and byte strides (None: contiguous)."""

    shape: tuple[int, ...]
    dtype: DType = f32
    strides: tuple[int, ...] | None = None
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.shape) > MAX_RANK:
            raise ShapeError(f"rank {len(self.shape)} is over the limit of {MAX_RANK}")
        if self.shape and min(self.shape) < 0:
            raise ShapeError(f"negative extent in shape {self.shape}")
        if self.strides is not None:
            object.__setattr__(self, "strides", self._compared(self.strides))
        # Kept, since specs are parts of many keys.
        object.__setattr__(self, "_hash", hash((self.shape, self.dtype, self.strides)))

    def _compared(self, strides: tuple[int, ...]) -> tuple[int, ...] | None:
        """Strides as specs are compared by them: None where they say no more than the shape."""
        if len(strides) != len(self.shape):
            raise ShapeError(f"shape {self.shape} takes as many strides, got {strides}")
        plain = contiguous_strides(self.shape, self.dtype)
        # The stride of an axis with one element is never used, so layouts compare without it.
        used = tuple(p if n == 1 else s for n, s, p in zip(self.shape, strides, plain, strict=True))
        same = used == plain or self.size == 0
        return None if same else used

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[TensorSpec], tuple[object, ...]]:
        # Hashes of texts, which are part of it, differ between processes.
        return TensorSpec, (self.shape, self.dtype, self.strides)

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, without gaps between strides."""
        if not self.shape:
            return self.dtype.nbytes
        if 0 in self.shape:
            return 0
        return math.prod(self.shape[:-1]) * self.dtype.row_bytes(self.shape[-1])

    @property
    def contiguous(self) -> bool:
        """True when elements lie row-major without gaps."""
        return self.strides is None

    @cached_property
    def byte_strides(self) -> tuple[int, ...]:
        """Byte strides, spelled out also when contiguous."""
        return (
            self.strides if self.strides is not None else contiguous_strides(self.shape, self.dtype)
        )

    @property
    def storage_shape(self) -> tuple[int, ...]:
        """The shape as an array of dtype.storage: a block type's last axis counts bytes."""
        if not self.dtype.quantized or not self.shape:
            return self.shape
        return (*self.shape[:-1], self.dtype.row_bytes(self.shape[-1]))

    @property
    def storage_strides(self) -> tuple[int, ...]:
        """The byte strides that go with storage_shape."""
        last = (1,) if self.dtype.quantized else self.byte_strides[-1:]
        return (*self.byte_strides[:-1], *last)

    @property
    def span(self) -> int:
        """Bytes from the first element to the end of the last."""
        if self.contiguous or self.size == 0:
            return self.nbytes
        steps = zip(self.storage_shape, self.storage_strides, strict=True)
        return sum((n - 1) * s for n, s in steps) + self.dtype.storage.itemsize

    def like(self, shape: tuple[int, ...] | None = None, dtype: DType | None = None) -> TensorSpec:
        """A contiguous spec with this one's shape and dtype where none is given."""
        return TensorSpec(self.shape if shape is None else shape, dtype or self.dtype)

    def __str__(self) -> str:
        text = f"{self.dtype.name}[{','.join(map(str, self.shape))}]"
        return text if self.strides is None else f"{text}@{','.join(map(str, self.strides))}"


@lru_cache(maxsize=4096)
def shared(spec: TensorSpec) -> TensorSpec:
    """A spec that equals this one, the same object for all. Keys made of it compare at once."""
    return spec


_SPEC = re.compile(r"(\w+)\[((?:\d+(?:,\d+)*)?)\](?:@(\d+(?:,\d+)*))?")


def parse_spec(text: str) -> TensorSpec:
    """The inverse of str(spec). Raises GraphError for text that is no spec."""
    found = _SPEC.fullmatch(text)
    if found is None:
        raise GraphError(f"{text!r} is not a spec like f32[4,256]")
    shape, strides = (tuple(int(n) for n in (g or "").split(",") if n) for g in found.groups()[1:])
    return TensorSpec(shape, dtype(found[1]), strides or None)
