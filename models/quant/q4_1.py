"""q4_1: 32 elements in 20 bytes: d f16, m f16, 16 bytes of nibbles. y = d * q + m."""

from __future__ import annotations

import numpy as np

from ._blocks import (
    f16_at,
    f16_field,
    join,
    nibbles,
    pack_nibbles,
    quantize_affine,
    register_blocks,
)


def decode(blocks: np.ndarray) -> np.ndarray:
    """uint8 [N, 20] -> f32 [N, 32]."""
    return f16_at(blocks, 0) * nibbles(blocks[:, 4:]).astype(np.float32) + f16_at(blocks, 2)


def encode(x: np.ndarray) -> np.ndarray:
    """f32 [N, 32] -> uint8 [N, 20]."""
    q, d, m = quantize_affine(x, 15)
    return join(f16_field(d), f16_field(m), pack_nibbles(q))


register_blocks("q4_1", decode, encode)
