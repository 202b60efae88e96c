"""q4_0: 32 elements in 18 bytes: d f16, 16 bytes of nibbles. y = d * (q - 8)."""

from __future__ import annotations

import numpy as np

from ._blocks import (
    f16_at,
    f16_field,
    join,
    nibbles,
    pack_nibbles,
    quantize_signed,
    register_blocks,
)


def decode(blocks: np.ndarray) -> np.ndarray:
    """uint8 [N, 18] -> f32 [N, 32]."""
    return f16_at(blocks, 0) * (nibbles(blocks[:, 2:]).astype(np.float32) - np.float32(8))


def encode(x: np.ndarray) -> np.ndarray:
    """f32 [N, 32] -> uint8 [N, 18]."""
    q, d = quantize_signed(x, 8)
    return join(f16_field(d), pack_nibbles(q))


register_blocks("q4_0", decode, encode)
