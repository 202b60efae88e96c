"""What the processor's products with weights of block types make of x before they multiply."""

from __future__ import annotations

import numpy as np

TINY = np.float32(1e-36)  # of a block whose peak is less, nothing is left


def rounded(x: np.ndarray) -> np.ndarray:
    """x [..., K] f32 as whole steps of a 127th of each 32 values' peak, f64, which holds them."""
    blocks = x.reshape(-1, 32)
    peak = np.abs(blocks).max(-1, keepdims=True)
    some = peak >= TINY
    steps = np.rint(blocks * (np.float32(127) / np.where(some, peak, 1)))
    scale = np.where(some, peak * np.float32(1 / 127), 0)
    return (steps.astype(np.float64) * scale).reshape(x.shape)
