"""Least-squares fit of what q2_k, q4_k and q5_k share: y = d * scale_j * q - dmin * low_j, where
d and dmin are f16, one pair a block, and scale_j and low_j are whole numbers of sub-block j."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ._blocks import f16_at, f16_field, inverse


class Affine(NamedTuple):
    """d and dmin, bytes of f16 [N, 2]; scale and low, uint8 [N, S]; codes q, uint8 [N, S, W]."""

    d: np.ndarray
    dmin: np.ndarray
    scale: np.ndarray
    low: np.ndarray
    q: np.ndarray


def fit_affine(
    x: np.ndarray, top: int, scale_top: int, spans: tuple[float, ...], rounds: int = 0
) -> Affine:
    """Fit x [N, S, W] with codes 0 .. top, scales and minima 0 .. scale_top.

    spans: ranges of the first codes to try, as parts of the values' range: clipping outliers can
    lower the error. rounds: how often codes and steps are fitted to each other after that."""
    step, offset = _fit(x, top, spans, rounds)
    d = f16_field(step.max(axis=-1, keepdims=True) / np.float32(scale_top))
    dmin = f16_field(offset.max(axis=-1, keepdims=True) / np.float32(scale_top))
    scale = _codes(step, f16_at(d, 0), scale_top).astype(np.uint8)
    low = _codes(offset, f16_at(dmin, 0), scale_top).astype(np.uint8)
    stored_step = (f16_at(d, 0) * scale)[..., None]
    stored_offset = (f16_at(dmin, 0) * low)[..., None]
    q = _codes(x + stored_offset, stored_step, top)
    return Affine(d, dmin, scale, low, q.astype(np.uint8))


def _fit(
    x: np.ndarray, top: int, spans: tuple[float, ...], rounds: int
) -> tuple[np.ndarray, np.ndarray]:
    """step >= 0 and offset >= 0, both [N, S], that minimise |step * q - offset - x|."""
    low = np.minimum(x.min(axis=-1, keepdims=True), 0)
    span = x.max(axis=-1, keepdims=True) - low
    best = np.full(x.shape[:2], np.inf, np.float32)
    step, offset = np.zeros_like(best), np.zeros_like(best)
    for part in spans:
        start = np.minimum(low + np.float32((1 - part) / 2) * span, 0)
        q = _codes(x - start, np.float32(part / top) * span, top)
        s, m = _least_squares(x, q)
        for _ in range(rounds):
            q = _codes(x + m[..., None], s[..., None], top)
            s, m = _least_squares(x, q)
        error = np.square(s[..., None] * q - m[..., None] - x).sum(axis=-1)
        better = error < best
        best[better], step[better], offset[better] = error[better], s[better], m[better]
    return step, offset


def _least_squares(x: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The best step and offset for given codes; offset 0 where the best would be negative."""
    width = x.shape[-1]
    sq, sqq = q.sum(axis=-1), np.square(q).sum(axis=-1)
    sx, sxq = x.sum(axis=-1), (x * q).sum(axis=-1)
    inv = inverse(width * sqq - sq * sq)
    step = (width * sxq - sx * sq) * inv
    offset = (sq * sxq - sqq * sx) * inv
    # Equal codes leave step undetermined; one of value c is met by its offset alone.
    flat = inv == 0
    offset = np.where(flat, -sx / np.float32(width), offset)
    through_zero = (offset < 0) | (step < 0)
    step = np.where(through_zero, np.maximum(sxq * inverse(sqq), 0), step)
    return step, np.where(through_zero, np.float32(0), offset)


def _codes(x: np.ndarray, step: np.ndarray, top: int) -> np.ndarray:
    return np.clip(np.rint(x * inverse(step)), 0, top)
