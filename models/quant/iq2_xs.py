"""iq2_xs: 256 elements in 74 bytes: d f16, for each 8 a u16 of a 9-bit code and 7 bits of signs,
8 bytes of two 4-bit scales. y = d * (2 * scale_j + 1) / 8 * magnitude * sign, one scale per 16."""

from __future__ import annotations

import numpy as np

from ._blocks import f16_at, join, register_blocks
from ._grid_blocks import apply, fit, magnitudes, pack_scales, signs_of_7, step_nibbles


def decode(blocks: np.ndarray) -> np.ndarray:
    """uint8 [N, 74] -> f32 [N, 256]."""
    n = len(blocks)
    words = np.ascontiguousarray(blocks[:, 2:66]).view("<u2")
    step = step_nibbles(f16_at(blocks, 0), blocks[:, 66:], 0.125)
    size = magnitudes("iq2_xs")[words & 511].reshape(n, 256)
    return apply(step, size, signs_of_7(words >> 9))


def encode(x: np.ndarray) -> np.ndarray:
    """f32 [N, 256] -> uint8 [N, 74]."""
    f = fit(x, "iq2_xs", 16, 0.125, even=True)
    words = f.codes | (f.signs & 127).astype(np.uint16) << 9
    return join(f.d, words.astype("<u2").view(np.uint8), pack_scales(f.scale))


register_blocks("iq2_xs", decode, encode)
