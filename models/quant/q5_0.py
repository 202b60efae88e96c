"""q5_0: 32 elements in 22 bytes: d f16, 32 high bits, 16 bytes of nibbles. y = d * (q - 16)."""

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
    quantize_signed,
    register_blocks,
)


def decode(blocks: np.ndarray) -> np.ndarray:
    """uint8 [N, 22] -> f32 [N, 32]."""
    q = nibbles(blocks[:, 6:]) | bits(blocks[:, 2:6]) << 4
    return f16_at(blocks, 0) * (q.astype(np.float32) - np.float32(16))


def encode(x: np.ndarray) -> np.ndarray:
    """f32 [N, 32] -> uint8 [N, 22]."""
    q, d = quantize_signed(x, 16)
    return join(f16_field(d), pack_bits(q >> 4), pack_nibbles(q))


register_blocks("q5_0", decode, encode)
