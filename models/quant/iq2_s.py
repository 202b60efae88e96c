"""iq2_s: 256 elements in 82 bytes: d f16, for each 8 the low byte of a 10-bit code, then a byte of
signs, 8 bytes of the codes' upper bit pairs, 8 bytes of two 4-bit scales.
y = d * (2 * scale_j + 1) / 8 * magnitude * sign, one scale per 16 elements."""

from __future__ import annotations

import numpy as np

from ._blocks import f16_at, join, pack_pairs, pairs, register_blocks
from ._grid_blocks import apply, fit, magnitudes, pack_scales, step_nibbles


def decode(blocks: np.ndarray) -> np.ndarray:
    """uint8 [N, 82] -> f32 [N, 256]."""
    n = len(blocks)
    upper = pairs(blocks[:, 66:74, None]).reshape(n, 32).astype(np.uint16)
    codes = blocks[:, 2:34] | upper << 8
    step = step_nibbles(f16_at(blocks, 0), blocks[:, 74:], 0.125)
    return apply(step, magnitudes("iq2_s")[codes].reshape(n, 256), blocks[:, 34:66])


def encode(x: np.ndarray) -> np.ndarray:
    """f32 [N, 256] -> uint8 [N, 82]."""
    f, n = fit(x, "iq2_s", 16, 0.125, even=False), len(x)
    low, upper = f.codes.astype(np.uint8), (f.codes >> 8).astype(np.uint8)
    high = pack_pairs(upper.reshape(n, 8, 4, 1)).reshape(n, 8)
    return join(f.d, low, f.signs, high, pack_scales(f.scale))


register_blocks("iq2_s", decode, encode)
