"""Host tensors: a spec with its raw storage, as weights come out of files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .codec import decode, encode
from .dtype import DType, dtype
from .errors import ShapeError
from .spec import TensorSpec


@dataclass(frozen=True)
class HostTensor:
    """raw: a flat uint8 array of spec.nbytes bytes (a view onto a file, or an owned array).

    give_back: takes what was read of a part of raw out of memory; raw stays as it is, and what is
    read of it next comes from the file. None where raw lies in memory that is no file's."""

    spec: TensorSpec
    raw: np.ndarray
    give_back: Callable[[np.ndarray], None] | None = None

    def __post_init__(self) -> None:
        if self.raw.dtype != np.uint8 or self.raw.ndim != 1 or self.raw.size != self.spec.nbytes:
            raise ShapeError(
                f"storage of {self.spec} should be {self.spec.nbytes} flat bytes, "
                f"got {self.raw.dtype}{list(self.raw.shape)}"
            )

    def decoded(self) -> np.ndarray:
        """The values: plain types as themselves, block types and bf16 as float32."""
        return decode(self.spec.dtype, self.raw, self.spec.shape)


def host_tensor(values: np.ndarray | HostTensor, of: DType | str | None = None) -> HostTensor:
    """An array as a HostTensor, encoded to dtype `of` when given. float64 becomes float32."""
    if isinstance(values, HostTensor):
        return values
    array = np.asarray(values)
    narrowed = {"float64": "f32", "int64": "i32"}
    d = dtype(of if of is not None else narrowed.get(array.dtype.name, array.dtype.name))
    raw = np.ascontiguousarray(encode(d, array)).reshape(-1).view(np.uint8)
    return HostTensor(TensorSpec(array.shape, d), raw)
