"""Least-squares fit of what q3_k, q6_k and the iq4 formats share: y = d * scale_j * value(q), where
d is f16 and the step d * scale_j has a sign of its own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ._blocks import f16_at, f16_field, inverse

Values = Callable[[np.ndarray], np.ndarray]


def whole(levels: int) -> Values:
    """The values -levels .. levels - 1: x to the nearest of them."""
    return lambda x: np.clip(np.rint(x), -levels, levels - 1)


def fit_step(x: np.ndarray, values: Values, ends: tuple[float, ...]) -> np.ndarray:
    """The step [...] that minimises |step * values(x / step) - x| over x [..., W].

    ends: values to try first for the element of largest magnitude."""
    peak = _peak(x)
    best = np.full(x.shape[:-1], np.inf, np.float32)
    step = np.zeros_like(best)
    for end in ends:
        v = values(x * inverse(peak * np.float32(1 / end)))
        s = (x * v).sum(axis=-1) * inverse(np.square(v).sum(axis=-1))
        error = np.square(s[..., None] * v - x).sum(axis=-1)
        better = error < best
        best[better], step[better] = error[better], s[better]
    return step


def split_step(step: np.ndarray, levels: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """step [N, S] as d, bytes of f16 [N, 2], and whole scales -levels .. levels - 1, f32 [N, S];
    third their product, f32 [N, S]."""
    d = f16_field(_peak(step) / np.float32(-levels))
    scale = whole(levels)(step * inverse(f16_at(d, 0)))
    return d, scale, f16_at(d, 0) * scale


def _peak(x: np.ndarray) -> np.ndarray:
    """The element [..., 1] of largest magnitude."""
    return np.take_along_axis(x, np.abs(x).argmax(axis=-1)[..., None], axis=-1)
