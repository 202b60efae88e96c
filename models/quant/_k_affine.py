"""What q4_k and q5_k share: 8 sub-blocks of 32 with 6-bit scales and minima.

y = d * scale_j * q - dmin * min_j in sub-block j; d and dmin are f16, one pair per 256 elements.
The 12 bytes of scales and minima: of j < 4 the low 6 bits of bytes j and j + 4; of j >= 4 the
nibbles of byte j + 4, topped by the upper 2 bits of bytes j - 4 and j."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ._blocks import f16_at, f16_field, inverse, join

_SUB, _WIDTH = 8, 32
# Range of the first codes, as a part of the values' range: clipping outliers can lower the error.
_SPANS = (1.0, 0.95, 0.9, 0.85)


class Affine(NamedTuple):
    """The 16 head bytes of each block [N, 16], and the codes uint8 [N, 8, 32]."""

    head: np.ndarray
    q: np.ndarray


def decode_affine(blocks: np.ndarray, q: np.ndarray) -> np.ndarray:
    """f32 [N, 256] from blocks that start with d, dmin and 12 scale bytes, and codes [N, 8, 32]."""
    scale, low = _unpack(blocks[:, 4:16])
    step = f16_at(blocks, 0) * scale.astype(np.float32)
    offset = f16_at(blocks, 2) * low.astype(np.float32)
    y = step[..., None] * q.astype(np.float32) - offset[..., None]
    return y.reshape(len(blocks), _SUB * _WIDTH)


def encode_affine(x: np.ndarray, top: int) -> Affine:
    """Least-squares fit of x [N, 256] with codes 0 .. top."""
    x = x.reshape(len(x), _SUB, _WIDTH)
    step, offset = _fit(x, top)
    d = f16_field(step.max(axis=-1, keepdims=True) / np.float32(63))
    dmin = f16_field(offset.max(axis=-1, keepdims=True) / np.float32(63))
    scale = _six_bits(step, f16_at(d, 0))
    low = _six_bits(offset, f16_at(dmin, 0))
    stored_step = (f16_at(d, 0) * scale)[..., None]
    stored_offset = (f16_at(dmin, 0) * low)[..., None]
    q = _codes(x + stored_offset, stored_step, top)
    return Affine(join(d, dmin, _pack(scale, low)), q.astype(np.uint8))


def _fit(x: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """step >= 0 and offset >= 0, both [N, 8], that minimise |step * q - offset - x|."""
    low = np.minimum(x.min(axis=-1, keepdims=True), 0)
    span = x.max(axis=-1, keepdims=True) - low
    best = np.full(x.shape[:2], np.inf, np.float32)
    step, offset = np.zeros_like(best), np.zeros_like(best)
    for part in _SPANS:
        start = np.minimum(low + np.float32((1 - part) / 2) * span, 0)
        q = _codes(x - start, np.float32(part / top) * span, top)
        s, m = _least_squares(x, q)
        error = np.square(s[..., None] * q - m[..., None] - x).sum(axis=-1)
        better = error < best
        best[better], step[better], offset[better] = error[better], s[better], m[better]
    return step, offset


def _least_squares(x: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The best step and offset for given codes; offset 0 where the best would be negative."""
    sq, sqq = q.sum(axis=-1), np.square(q).sum(axis=-1)
    sx, sxq = x.sum(axis=-1), (x * q).sum(axis=-1)
    inv = inverse(_WIDTH * sqq - sq * sq)
    step = (_WIDTH * sxq - sx * sq) * inv
    offset = (sq * sxq - sqq * sx) * inv
    # Equal codes leave step undetermined; one of value c is met by its offset alone.
    flat = inv == 0
    offset = np.where(flat, -sx / np.float32(_WIDTH), offset)
    through_zero = (offset < 0) | (step < 0)
    step = np.where(through_zero, np.maximum(sxq * inverse(sqq), 0), step)
    return step, np.where(through_zero, np.float32(0), offset)


def _codes(x: np.ndarray, step: np.ndarray, top: int) -> np.ndarray:
    return np.clip(np.rint(x * inverse(step)), 0, top)


def _six_bits(values: np.ndarray, unit: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(values * inverse(unit)), 0, 63).astype(np.uint8)


def _unpack(s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """12 bytes as scales and minima, both uint8 [N, 8]."""
    a, b, c = s[:, 0:4], s[:, 4:8], s[:, 8:12]
    scale = join(a & 63, c & 15 | a >> 6 << 4)
    return scale, join(b & 63, c >> 4 | b >> 6 << 4)


def _pack(scale: np.ndarray, low: np.ndarray) -> np.ndarray:
    a = scale[:, :4] | scale[:, 4:] >> 4 << 6
    b = low[:, :4] | low[:, 4:] >> 4 << 6
    return join(a, b, scale[:, 4:] & 15 | (low[:, 4:] & 15) << 4)
