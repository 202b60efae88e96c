"""q5_1: 32 elements in 24 bytes: d f16, m f16, 32 high bits, 16 bytes of nibbles. y = d * q + m."""

from __future__ import annotations

import numpy as np

from ._blocks import (
    bits,
    f16_at,
    f16_field,
    join,
    nibbles,
    pack_bits,
    pack_nibbles,
    quantize_affine,
    register_blocks,
)


def decode(blocks: np.ndarray) -> np.ndarray:
    """uint8 [N, 24] -> f32 [N, 32]."""
    q = nibbles(blocks[:, 8:]) | bits(blocks[:, 4:8]) << 4
    return f16_at(blocks, 0) * q.astype(np.float32) + f16_at(blocks, 2)


def encode(x: np.ndarray) -> np.ndarray:
    """f32 [N, 32] -> uint8 [N, 24]."""
    q, d, m = quantize_affine(x, 31)
    return join(f16_field(d), f16_field(m), pack_bits(q >> 4), pack_nibbles(q))


register_blocks("q5_1", decode, encode)
