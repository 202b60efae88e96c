"""What iq2 and iq3 share: magnitudes from a grid, signs apart, and steps d * (2 * scale + 1).

y = step_j * magnitude * sign. Where signs take 7 bits for eight values, the eighth makes their
number even."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ._blocks import bits, f16_at, f16_field, inverse, nibbles, pack_bits
from ._grids import GRIDS

_IQ2 = np.array((8, 25, 43), np.float32)
_IQ3_XXS = np.array((4, 12, 20, 28, 36, 44, 52, 62), np.float32)
_IQ3_S = np.array((1, 3, 5, 7, 9, 11, 13, 15), np.float32)
# The step to begin with, as a part of the largest element over the largest magnitude.
_ENDS = (0.95,)
_SEVEN = np.arange(0, 28, 7, dtype=np.uint32)


def magnitudes(name: str) -> np.ndarray:
    """f32 [codes, places]: what each code names."""
    wide = name.startswith("iq2")
    values = _IQ2 if wide else _IQ3_XXS if name == "iq3_xxs" else _IQ3_S
    each, places = (2, 8) if wide else (4, 4)
    shifts = np.arange(0, each * places, each, dtype=np.uint16)
    return values[GRIDS[name][:, None] >> shifts & (2**each - 1)]


def signs_of_7(words: np.ndarray) -> np.ndarray:
    """Signs in 7 bits each, u32 or u16 [...]: bytes of 8, the eighth their parity."""
    seven = (words & 127).astype(np.uint8)
    odd = np.bitwise_xor.reduce(seven[..., None] >> np.arange(7, dtype=np.uint8) & 1, axis=-1)
    return seven | odd << 7


def four_signs(word: np.ndarray) -> np.ndarray:
    """The signs of a u32 [N, 8]: bytes [N, 32]."""
    return signs_of_7(word[..., None] >> _SEVEN).reshape(len(word), 32)


def apply(step: np.ndarray, size: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """f32 [N, 256] from steps [N, S], magnitudes [N, 256] and sign bytes [N, 32]."""
    n, count = step.shape
    signed = np.where(bits(signs), -size, size).reshape(n, count, -1)
    return (step[..., None] * signed).reshape(n, 256)


class Fit(NamedTuple):
    """d, bytes of f16 [N, 2]; scales uint8 [N, S]; codes u16 [N, 256 / places]; signs [N, 32]."""

    d: np.ndarray
    scale: np.ndarray
    codes: np.ndarray
    signs: np.ndarray


def fit(x: np.ndarray, name: str, count: int, factor: float, even: bool) -> Fit:
    """Blocks x [N, 256] in `count` sub-blocks, whose steps are factor * d * (2 * scale + 1).

    even: eight values have an even number of signs, so that the sign of the smallest may change."""
    n, grid = len(x), magnitudes(name)
    negative = (x < 0).reshape(-1, 8)
    size = np.abs(x).reshape(-1, 8)
    if even:
        odd = negative.sum(axis=-1) % 2 == 1
        least = size.argmin(axis=-1)
        rows = np.flatnonzero(odd)
        negative[rows, least[rows]] ^= True
        size = size.copy()
        size[rows, least[rows]] *= -1
    size = size.reshape(n, count, -1)
    step = _steps(size, grid)
    d = f16_field(step.max(axis=-1, keepdims=True) / np.float32(31 * factor))
    unit = f16_at(d, 0) * np.float32(factor)
    scale = np.clip(np.rint((step * inverse(unit) - 1) / 2), 0, 15).astype(np.uint8)
    stored = unit * (2 * scale.astype(np.float32) + 1)
    codes = _nearest(size * inverse(stored)[..., None], grid)
    signs = pack_bits(negative.reshape(n, 256))
    return Fit(d, scale, codes.reshape(n, -1), signs)


def _steps(size: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """The best step [N, S] of a few for sub-blocks [N, S, W]."""
    peak = size.max(axis=-1) / grid.max()
    best, step = np.full(peak.shape, np.inf, np.float32), peak
    for end in _ENDS:
        tried = peak * np.float32(end)
        values = grid[_nearest(size * inverse(tried)[..., None], grid)].reshape(size.shape)
        square = np.square(values).sum(axis=-1)
        fitted = (values * size).sum(axis=-1) / square
        error = np.square(fitted[..., None] * values - size).sum(axis=-1)
        better = (error < best) & (fitted > 0)
        best, step = np.where(better, error, best), np.where(better, fitted, step)
    return step


def _nearest(scaled: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """The code u16 [...] of the nearest magnitudes, for values that lie one after another."""
    groups = scaled.reshape(-1, grid.shape[1])
    half = np.square(grid).sum(axis=-1) / 2
    codes = np.empty(len(groups), np.uint16)
    for at in range(0, len(groups), 2048):
        part = groups[at : at + 2048]
        codes[at : at + 2048] = (half - part @ grid.T).argmin(axis=-1)
    return codes


def pack_signs_of_7(signs: np.ndarray) -> np.ndarray:
    """Sign bytes [N, 32] as u32 [N, 8], four in each, 7 bits."""
    seven = (signs & 127).reshape(-1, 8, 4).astype(np.uint32)
    return np.bitwise_or.reduce(seven << _SEVEN, axis=-1)


def step_nibbles(d: np.ndarray, packed: np.ndarray, factor: float) -> np.ndarray:
    """Steps [N, 2S] from d [N, 1] and bytes [N, S] of two scales each, the lower nibble first."""
    scale = nibbles(packed[..., None]).reshape(len(packed), -1).astype(np.float32)
    return d * np.float32(factor) * (2 * scale + 1)


def pack_scales(scale: np.ndarray) -> np.ndarray:
    """Scales [N, 2S] as bytes [N, S] of two."""
    return scale[:, 0::2] | scale[:, 1::2] << 4
