"""q6_k: 256 elements in 210 bytes: 128 bytes of low nibbles, 64 of upper bit pairs, 16 int8 scales,
d f16. y = d * scale_j * (q - 32), one scale per 16 elements.

Each half of 128 elements has 4 groups of 32: groups 0, 1 are the low and 2, 3 the high nibbles of
its 64 bytes; the upper 2 bits of group g are bits 2g, 2g + 1 of its 32 bytes."""

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

_CODES = whole(32)
_ENDS = tuple(-32 / part for part in (1.06, 1.03, 1.0, 0.97, 0.94))


def decode(blocks: np.ndarray) -> np.ndarray:
    """uint8 [N, 210] -> f32 [N, 256]."""
    n = len(blocks)
    low = nibbles(blocks[:, :128].reshape(n, 2, 64)).reshape(n, 2, 4, 32)
    high = pairs(blocks[:, 128:192].reshape(n, 2, 32))
    q = (low | high << 4).astype(np.float32) - np.float32(32)
    step = f16_at(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return (step[..., None] * q.reshape(n, 16, 16)).reshape(n, 256)


def encode(x: np.ndarray) -> np.ndarray:
    """f32 [N, 256] -> uint8 [N, 210]: least-squares steps, each with its own sign."""
    n = len(x)
    x = x.reshape(n, 16, 16)
    d, scale, step = split_step(fit_step(x, _CODES, _ENDS), 128)
    q = (_CODES(x * inverse(step)[..., None]) + 32).astype(np.uint8).reshape(n, 2, 4, 32)
    low = pack_nibbles(q.reshape(n, 2, 128)).reshape(n, 128)
    high = pack_pairs(q >> 4).reshape(n, 64)
    return join(low, high, scale.astype(np.int8).view(np.uint8), d)


register_blocks("q6_k", decode, encode)
