"""The uneven 4-bit values of iq4_nl and iq4_xs."""

from __future__ import annotations

import numpy as np

VALUES = np.array(
    (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.float32
)
_BETWEEN = (VALUES[1:] + VALUES[:-1]) / 2
# For fit_step: values that the largest element may get, and some beyond, which clip it.
ENDS = (-127.0, -116.0, -105.0, 113.0, 103.0)


def codes(x: np.ndarray) -> np.ndarray:
    """uint8 [...]: which value is nearest to each of x."""
    return np.searchsorted(_BETWEEN, x).astype(np.uint8)


def nearest(x: np.ndarray) -> np.ndarray:
    """The nearest values, f32 [...]."""
    return VALUES[codes(x)]
