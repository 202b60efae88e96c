"""iq3_xxs: 256 elements in 98 bytes: d f16, for each 4 a code of 8 bits, then for each 32 a u32 of
four signs of 7 bits below a 4-bit scale. y = d * (2 * scale + 1) / 4 * magnitude * sign."""

from __future__ import annotations

import numpy as np

from ._blocks import f16_at, join, register_blocks
from ._grid_blocks import apply, fit, four_signs, magnitudes, pack_signs_of_7


def decode(blocks: np.ndarray) -> np.ndarray:
    """uint8 [N, 98] -> f32 [N, 256]."""
    words = np.ascontiguousarray(blocks[:, 66:]).view("<u4")
    scale = (words >> 28).astype(np.float32)
    step = f16_at(blocks, 0) * np.float32(0.25) * (2 * scale + 1)
    size = magnitudes("iq3_xxs")[blocks[:, 2:66]].reshape(len(blocks), 256)
    return apply(step, size, four_signs(words))


def encode(x: np.ndarray) -> np.ndarray:
    """f32 [N, 256] -> uint8 [N, 98]."""
    f = fit(x, "iq3_xxs", 8, 0.25, even=True)
    words = pack_signs_of_7(f.signs) | f.scale.astype(np.uint32) << np.uint32(28)
    return join(f.d, f.codes.astype(np.uint8), words.astype("<u4").view(np.uint8))


register_blocks("iq3_xxs", decode, encode)
