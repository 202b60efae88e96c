"""iq2_xxs: 256 elements in 66 bytes: d f16, then for each 32 two u32: four codes of 8 bits, and
four signs of 7 bits below a 4-bit scale. y = d * (2 * scale + 1) / 8 * magnitude * sign."""

from __future__ import annotations

import numpy as np

from ._blocks import f16_at, join, register_blocks
from ._grid_blocks import apply, fit, four_signs, magnitudes, pack_signs_of_7


def decode(blocks: np.ndarray) -> np.ndarray:
    """uint8 [N, 66] -> f32 [N, 256]."""
    n = len(blocks)
    words = np.ascontiguousarray(blocks[:, 2:]).view("<u4").reshape(n, 8, 2)
    codes = np.ascontiguousarray(words[..., 0]).view(np.uint8).reshape(n, 32)
    scale = (words[..., 1] >> 28).astype(np.float32)
    step = f16_at(blocks, 0) * np.float32(0.125) * (2 * scale + 1)
    return apply(step, magnitudes("iq2_xxs")[codes].reshape(n, 256), four_signs(words[..., 1]))


def encode(x: np.ndarray) -> np.ndarray:
    """f32 [N, 256] -> uint8 [N, 66]."""
    f, n = fit(x, "iq2_xxs", 8, 0.125, even=True), len(x)
    codes = f.codes.astype(np.uint8).reshape(n, 8, 4).view("<u4")[..., 0]
    high = pack_signs_of_7(f.signs) | f.scale.astype(np.uint32) << np.uint32(28)
    words = np.stack([codes, high], axis=-1).astype("<u4").view(np.uint8)
    return join(f.d, words.reshape(n, 64))


register_blocks("iq2_xxs", decode, encode)
