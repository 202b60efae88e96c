"""q8_0: 32 elements in 34 bytes: d f16, 32 int8. y = d * q."""

from __future__ import annotations

import numpy as np

from ._blocks import f16_at, f16_field, inverse, join, register_blocks


def decode(blocks: np.ndarray) -> np.ndarray:
    """uint8 [N, 34] -> f32 [N, 32]."""
    return f16_at(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def encode(x: np.ndarray) -> np.ndarray:
    """f32 [N, 32] -> uint8 [N, 34]; halves round away from zero, by the d before its rounding."""
    d = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
    scaled = x * inverse(d)
    whole = np.trunc(scaled)
    q = whole + np.trunc(2 * (scaled - whole))
    return join(f16_field(d), q.astype(np.int8).view(np.uint8))


register_blocks("q8_0", decode, encode)
