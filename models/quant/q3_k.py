"""q3_k: 256 elements in 110 bytes: 32 bytes of high bits, 64 of bit pairs, 12 of 6-bit scales,
d f16. y = d * (scale_j - 32) * (q - 4), one scale per 16 elements.

Each half of 128 elements has 4 groups of 32: the low 2 bits of group g are bits 2g, 2g + 1 of its
32 bytes. The third bit of element l of the block's i-th 32 is bit i of the l-th byte.
Scales: the low 4 bits are the low nibbles, then the high nibbles of 8 bytes; the upper 2 bits are
the bit pairs of 4 bytes, lowest pairs first."""

from __future__ import annotations

import numpy as np

from ._blocks import (
    f16_at,
    inverse,
    join,
    nibbles,
    pack_nibbles,
    pack_pairs,
    pairs,
    register_blocks,
)
from ._signed import fit_step, split_step, whole

_CODES = whole(4)
_ENDS = (-3.4, -3.8, -4.0, -4.5, -5.0, -5.7)
_BIT = np.arange(8, dtype=np.uint8)[:, None]


def decode(blocks: np.ndarray) -> np.ndarray:
    """uint8 [N, 110] -> f32 [N, 256]."""
    n = len(blocks)
    high = blocks[:, None, :32] >> _BIT & 1
    low = pairs(blocks[:, 32:96].reshape(n, 2, 32)).reshape(n, 8, 32)
    q = (low | high << 2).astype(np.float32) - np.float32(4)
    scale = nibbles(blocks[:, 96:104]) | pairs(blocks[:, 104:108]).reshape(n, 16) << 4
    step = f16_at(blocks, 108) * (scale.astype(np.float32) - np.float32(32))
    return (step[..., None] * q.reshape(n, 16, 16)).reshape(n, 256)


def encode(x: np.ndarray) -> np.ndarray:
    """f32 [N, 256] -> uint8 [N, 110]: least-squares steps, each with its own sign."""
    n = len(x)
    x = x.reshape(n, 16, 16)
    d, scale, step = split_step(fit_step(x, _CODES, _ENDS), 32)
    q = (_CODES(x * inverse(step)[..., None]) + 4).astype(np.uint8).reshape(n, 8, 32)
    high = np.bitwise_or.reduce(q >> 2 << _BIT, axis=1)
    low = pack_pairs(q.reshape(n, 2, 4, 32)).reshape(n, 64)
    s = (scale + 32).astype(np.uint8)
    return join(high, low, pack_nibbles(s), pack_pairs((s >> 4).reshape(n, 4, 4)), d)


register_blocks("q3_k", decode, encode)
