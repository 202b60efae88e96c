"""What q4_k and q5_k share: 8 sub-blocks of 32 with 6-bit scales and minima.

y = d * scale_j * q - dmin * min_j in sub-block j; d and dmin are f16, one pair per 256 elements.
The 12 bytes of scales and minima: of j < 4 the low 6 bits of bytes j and j + 4; of j >= 4 the
nibbles of byte j + 4, topped by the upper 2 bits of bytes j - 4 and j."""

from __future__ import annotations

import numpy as np

from ._affine import fit_affine
from ._blocks import f16_at, join

_SUB, _WIDTH = 8, 32
_SPANS = (1.0, 0.95, 0.9, 0.85)


def decode_affine(blocks: np.ndarray, q: np.ndarray) -> np.ndarray:
    """f32 [N, 256] from blocks that start with d, dmin and 12 scale bytes, and codes [N, 8, 32]."""
    scale, low = _unpack(blocks[:, 4:16])
    step = f16_at(blocks, 0) * scale.astype(np.float32)
    offset = f16_at(blocks, 2) * low.astype(np.float32)
    y = step[..., None] * q.astype(np.float32) - offset[..., None]
    return y.reshape(len(blocks), _SUB * _WIDTH)


def encode_affine(x: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """The 16 head bytes of each block [N, 16], and codes 0 .. top as uint8 [N, 8, 32], of a
    least-squares fit of x [N, 256]."""
    fit = fit_affine(x.reshape(len(x), _SUB, _WIDTH), top, 63, _SPANS)
    return join(fit.d, fit.dmin, _pack(fit.scale, fit.low)), fit.q


def _unpack(s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """12 bytes as scales and minima, both uint8 [N, 8]."""
    a, b, c = s[:, 0:4], s[:, 4:8], s[:, 8:12]
    scale = join(a & 63, c & 15 | a >> 6 << 4)
    return scale, join(b & 63, c >> 4 | b >> 6 << 4)


def _pack(scale: np.ndarray, low: np.ndarray) -> np.ndarray:
    a = scale[:, :4] | scale[:, 4:] >> 4 << 6
    b = low[:, :4] | low[:, 4:] >> 4 << 6
    return join(a, b, scale[:, 4:] & 15 | (low[:, 4:] & 15) << 4)
