"""q5_k: 256 elements in 176 bytes: q4_k with 32 bytes of fifth bits between scales and nibbles.

Bit j of the l-th of those bytes belongs to element l of sub-block j."""

from __future__ import annotations

import numpy as np

from ._blocks import join, nibbles, pack_nibbles, register_blocks
from ._k_affine import decode_affine, encode_affine

_BIT = np.arange(8, dtype=np.uint8)[:, None]


def decode(blocks: np.ndarray) -> np.ndarray:
    """uint8 [N, 176] -> f32 [N, 256]."""
    low = nibbles(blocks[:, 48:].reshape(len(blocks), 4, 32)).reshape(len(blocks), 8, 32)
    high = blocks[:, None, 16:48] >> _BIT & 1
    return decode_affine(blocks, low | high << 4)


def encode(x: np.ndarray) -> np.ndarray:
    """f32 [N, 256] -> uint8 [N, 176]."""
    head, q = encode_affine(x, 31)
    high = np.bitwise_or.reduce(q >> 4 << _BIT, axis=1)
    return join(head, high, pack_nibbles(q.reshape(len(x), 4, 64)).reshape(len(x), 128))


register_blocks("q5_k", decode, encode)
