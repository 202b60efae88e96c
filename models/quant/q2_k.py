"""q2_k: 256 elements in 84 bytes: 16 bytes of 4-bit scales (low nibbles) and minima (high ones), 64
of bit pairs, d f16, dmin f16. y = d * scale_j * q - dmin * min_j, one pair per 16 elements.

Each half of 128 elements has 4 groups of 32: group g is bits 2g, 2g + 1 of its 32 bytes."""

from __future__ import annotations

import numpy as np

from ._affine import fit_affine
from ._blocks import f16_at, join, pack_pairs, pairs, register_blocks

_SPANS = (1.0, 0.9, 0.8, 0.7, 0.6)


def decode(blocks: np.ndarray) -> np.ndarray:
    """uint8 [N, 84] -> f32 [N, 256]."""
    n = len(blocks)
    q = pairs(blocks[:, 16:80].reshape(n, 2, 32)).reshape(n, 16, 16)
    step = f16_at(blocks, 80) * (blocks[:, :16] & 15).astype(np.float32)
    offset = f16_at(blocks, 82) * (blocks[:, :16] >> 4).astype(np.float32)
    return (step[..., None] * q.astype(np.float32) - offset[..., None]).reshape(n, 256)


def encode(x: np.ndarray) -> np.ndarray:
    """f32 [N, 256] -> uint8 [N, 84]."""
    n = len(x)
    fit = fit_affine(x.reshape(n, 16, 16), 3, 15, _SPANS, rounds=1)
    q = pack_pairs(fit.q.reshape(n, 2, 4, 32)).reshape(n, 64)
    return join(fit.scale | fit.low << 4, q, fit.d, fit.dmin)


register_blocks("q2_k", decode, encode)
