"""q4_k: 256 elements in 144 bytes: d f16, dmin f16, 12 bytes of 6-bit scales and minima, nibbles.

Sub-blocks 2i and 2i + 1 are the low and the high nibbles of the i-th 32 bytes."""

from __future__ import annotations

import numpy as np

from ._blocks import join, nibbles, pack_nibbles, register_blocks
from ._k_affine import decode_affine, encode_affine


def decode(blocks: np.ndarray) -> np.ndarray:
    """uint8 [N, 144] -> f32 [N, 256]."""
    q = nibbles(blocks[:, 16:].reshape(len(blocks), 4, 32))
    return decode_affine(blocks, q.reshape(len(blocks), 8, 32))


def encode(x: np.ndarray) -> np.ndarray:
    """f32 [N, 256] -> uint8 [N, 144]."""
    head, q = encode_affine(x, 15)
    return join(head, pack_nibbles(q.reshape(len(x), 4, 64)).reshape(len(x), 128))


register_blocks("q4_k", decode, encode)
