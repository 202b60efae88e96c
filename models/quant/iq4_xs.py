"""iq4_xs: 256 elements in 136 bytes: d f16, 2 bytes of upper and 4 of lower scale bits, 128 of
nibbles. y = d * (scale_j - 32) * VALUES[q], one scale per 32 elements.

The 6-bit scale of sub-block j: nibble j of the 4 bytes, topped by bit pair j of the 2, both lowest
first. Each 16 bytes of nibbles hold one sub-block."""

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
from ._iq4 import ENDS, VALUES, codes, nearest
from ._signed import fit_step, split_step


def decode(blocks: np.ndarray) -> np.ndarray:
    """uint8 [N, 136] -> f32 [N, 256]."""
    n = len(blocks)
    low = nibbles(blocks[:, 4:8, None]).reshape(n, 8)
    scale = low | pairs(blocks[:, 2:4, None]).reshape(n, 8) << 4
    step = f16_at(blocks, 0) * (scale.astype(np.float32) - np.float32(32))
    y = step[..., None] * VALUES[nibbles(blocks[:, 8:].reshape(n, 8, 16))]
    return y.reshape(n, 256)


def encode(x: np.ndarray) -> np.ndarray:
    """f32 [N, 256] -> uint8 [N, 136]: least-squares steps, each with its own sign."""
    n = len(x)
    x = x.reshape(n, 8, 32)
    d, scale, step = split_step(fit_step(x, nearest, ENDS), 32)
    s = (scale + 32).astype(np.uint8)
    low = pack_nibbles(s.reshape(n, 4, 2)).reshape(n, 4)
    high = pack_pairs((s >> 4).reshape(n, 2, 4, 1)).reshape(n, 2)
    q = pack_nibbles(codes(x * inverse(step)[..., None])).reshape(n, 128)
    return join(d, high, low, q)


register_blocks("iq4_xs", decode, encode)
