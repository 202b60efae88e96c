"""bf16: the upper 16 bits of an f32, 2 bytes per element."""

from __future__ import annotations

import numpy as np

from ...graph.codec import Codec, register_codec
from ...graph.errors import DTypeError


def decode(raw: np.ndarray) -> np.ndarray:
    """uint8 [..., 2n] -> f32 [..., n], exact."""
    if raw.shape[-1] % 2:
        raise DTypeError(f"bf16: rows must be whole pairs of bytes, got {raw.shape[-1]}")
    half = np.ascontiguousarray(raw).view("<u2")
    return (half.astype(np.uint32) << np.uint32(16)).view(np.float32)


def encode(values: np.ndarray) -> np.ndarray:
    """f32 [..., n] -> uint8 [..., 2n], rounded to nearest, ties to even; NaN becomes quiet."""
    values = np.ascontiguousarray(values, np.float32)
    u = values.view(np.uint32)
    upper = u >> np.uint32(16)
    # No overflow: rounding up the largest pattern that is not NaN stays below 2**32.
    rounded = (u + (np.uint32(0x7FFF) + (upper & np.uint32(1)))) >> np.uint32(16)
    half = np.where(np.isnan(values), upper | np.uint32(0x40), rounded)
    return half.astype("<u2").view(np.uint8)


register_codec("bf16", Codec(decode, encode))
