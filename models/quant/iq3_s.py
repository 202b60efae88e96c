"""iq3_s: 256 elements in 110 bytes: d f16, for each 4 the low byte of a 9-bit code, 8 bytes of the
codes' upper bits, for each 8 a byte of signs, 4 bytes of two 4-bit scales.
y = d * (2 * scale_j + 1) * magnitude * sign, one scale per 32 elements."""

from __future__ import annotations

import numpy as np

from ._blocks import bits, f16_at, join, pack_bits, register_blocks
from ._grid_blocks import apply, fit, magnitudes, pack_scales, step_nibbles


def decode(blocks: np.ndarray) -> np.ndarray:
    """uint8 [N, 110] -> f32 [N, 256]."""
    codes = blocks[:, 2:66] | bits(blocks[:, 66:74]).astype(np.uint16) << 8
    step = step_nibbles(f16_at(blocks, 0), blocks[:, 106:], 1.0)
    size = magnitudes("iq3_s")[codes].reshape(len(blocks), 256)
    return apply(step, size, blocks[:, 74:106])


def encode(x: np.ndarray) -> np.ndarray:
    """f32 [N, 256] -> uint8 [N, 110]."""
    f = fit(x, "iq3_s", 8, 1.0, even=False)
    upper = pack_bits((f.codes >> 8).astype(np.uint8))
    return join(f.d, f.codes.astype(np.uint8), upper, f.signs, pack_scales(f.scale))


register_blocks("iq3_s", decode, encode)
