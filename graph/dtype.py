"""Element and block types, with the ids and sizes of the ggml tensor format."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .errors import DTypeError


@dataclass(frozen=True)
class DType:
    """An element type, or a block type that packs `block` elements into `nbytes` bytes.

    numpy is the array type that holds one element; None for block types and bf16, whose arrays
    are raw bytes (uint8) and uint16. ggml_id is the tensor type id in a GGUF file, -1 if none."""

    name: str
    ggml_id: int
    block: int
    nbytes: int
    numpy: np.dtype | None = field(default=None, compare=False)

    def __hash__(self) -> int:
        # Specs are keys everywhere, and a name's hash is kept with the text.
        return hash(self.name)

    @property
    def quantized(self) -> bool:
        """True for block types."""
        return self.block > 1

    @property
    def storage(self) -> np.dtype:
        """The numpy type of the raw storage."""
        if self.numpy is not None:
            return self.numpy
        return np.dtype(np.uint16) if self.name == "bf16" else np.dtype(np.uint8)

    def row_bytes(self, n: int) -> int:
        """Bytes of n consecutive elements; n must be a whole number of blocks."""
        if n % self.block:
            raise DTypeError(
                f"{self.name}: rows are whole blocks of {self.block} elements, got a row of {n}"
            )
        return n // self.block * self.nbytes

    def __repr__(self) -> str:
        return self.name


def _plain(name: str, ggml_id: int, np_type: type) -> DType:
    dt = np.dtype(np_type)
    return DType(name, ggml_id, 1, dt.itemsize, dt)


f32 = _plain("f32", 0, np.float32)
f16 = _plain("f16", 1, np.float16)
bf16 = DType("bf16", 30, 1, 2)
f64 = _plain("f64", 28, np.float64)
i8 = _plain("i8", 24, np.int8)
i16 = _plain("i16", 25, np.int16)
i32 = _plain("i32", 26, np.int32)
i64 = _plain("i64", 27, np.int64)
u8 = _plain("u8", -1, np.uint8)

# name, ggml id, elements per block, bytes per block
_BLOCKS = (
    ("q4_0", 2, 32, 18),
    ("q4_1", 3, 32, 20),
    ("q5_0", 6, 32, 22),
    ("q5_1", 7, 32, 24),
    ("q8_0", 8, 32, 34),
    ("q8_1", 9, 32, 36),
    ("q2_k", 10, 256, 84),
    ("q3_k", 11, 256, 110),
    ("q4_k", 12, 256, 144),
    ("q5_k", 13, 256, 176),
    ("q6_k", 14, 256, 210),
    ("q8_k", 15, 256, 292),
    ("iq2_xxs", 16, 256, 66),
    ("iq2_xs", 17, 256, 74),
    ("iq3_xxs", 18, 256, 98),
    ("iq1_s", 19, 256, 50),
    ("iq4_nl", 20, 32, 18),
    ("iq3_s", 21, 256, 110),
    ("iq2_s", 22, 256, 82),
    ("iq4_xs", 23, 256, 136),
    ("iq1_m", 29, 256, 56),
    ("tq1_0", 34, 256, 54),
    ("tq2_0", 35, 256, 66),
    ("mxfp4", 39, 32, 17),
    ("nvfp4", 40, 64, 36),
    ("q1_0", 41, 128, 18),
    ("q2_0", 42, 64, 18),
)

_ALL = (f32, f16, bf16, f64, i8, i16, i32, i64, u8, *(DType(*row) for row in _BLOCKS))
BY_NAME: dict[str, DType] = {d.name: d for d in _ALL}
BY_GGML_ID: dict[int, DType] = {d.ggml_id: d for d in _ALL if d.ggml_id >= 0}
q8_0, q4_k, q5_0, q6_k = (BY_NAME[n] for n in ("q8_0", "q4_k", "q5_0", "q6_k"))


def dtype(what: DType | str | np.dtype | type) -> DType:
    """The DType for a name ("q8_0"), a numpy type, or a DType. Raises DTypeError for others."""
    if isinstance(what, DType):
        return what
    if isinstance(what, str) and what in BY_NAME:
        return BY_NAME[what]
    try:
        wanted = np.dtype(what)
    except TypeError:
        wanted = None
    for d in _ALL:
        if wanted is not None and d.numpy == wanted:
            return d
    raise DTypeError(f"unknown dtype {what!r}; known: {', '.join(BY_NAME)}")
