"""iq4_nl: 32 elements in 18 bytes: d f16, 16 bytes of nibbles. y = d * VALUES[q]."""

from __future__ import annotations

import numpy as np

from ._blocks import f16_at, f16_field, inverse, join, nibbles, pack_nibbles, register_blocks
from ._iq4 import ENDS, VALUES, codes, nearest
from ._signed import fit_step


def decode(blocks: np.ndarray) -> np.ndarray:
    """uint8 [N, 18] -> f32 [N, 32]."""
    return f16_at(blocks, 0) * VALUES[nibbles(blocks[:, 2:])]


def encode(x: np.ndarray) -> np.ndarray:
    """f32 [N, 32] -> uint8 [N, 18]: the least-squares d."""
    d = f16_field(fit_step(x, nearest, ENDS)[:, None])
    return join(d, pack_nibbles(codes(x * inverse(f16_at(d, 0)))))


register_blocks("iq4_nl", decode, encode)
