"""q6_k: 256 elements in 210 bytes: 128 bytes of low nibbles, 64 of upper bit pairs, 16 int8 scales,
d f16. y = d * scale_j * (q - 32), one scale per 16 elements.

Each half of 128 elements has 4 groups of 32: groups 0, 1 are the low and 2, 3 the high nibbles of
its 64 bytes; the upper 2 bits of group g are bits 2g, 2g + 1 of its 32 bytes."""

from __future__ import annotations

import numpy as np

from ._blocks import f16_at, f16_field, inverse, join, nibbles, pack_nibbles, register_blocks

_PAIR = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
# First steps to try, as parts of peak / 32.
_SPANS = (1.06, 1.03, 1.0, 0.97, 0.94)


def decode(blocks: np.ndarray) -> np.ndarray:
    """uint8 [N, 210] -> f32 [N, 256]."""
    n = len(blocks)
    low = nibbles(blocks[:, :128].reshape(n, 2, 64)).reshape(n, 2, 4, 32)
    high = blocks[:, 128:192].reshape(n, 2, 1, 32) >> _PAIR & 3
    q = (low | high << 4).astype(np.float32) - np.float32(32)
    step = f16_at(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return (step[..., None] * q.reshape(n, 16, 16)).reshape(n, 256)


def encode(x: np.ndarray) -> np.ndarray:
    """f32 [N, 256] -> uint8 [N, 210]: least-squares steps, each with its own sign."""
    n = len(x)
    x = x.reshape(n, 16, 16)
    step = _fit(x)
    peak = np.take_along_axis(step, np.abs(step).argmax(axis=-1)[:, None], axis=-1)
    d = f16_field(peak / np.float32(-128))
    scale = np.clip(np.rint(step * inverse(f16_at(d, 0))), -128, 127).astype(np.int8)
    stored = f16_at(d, 0) * scale.astype(np.float32)
    q = (_codes(x, stored[..., None]) + 32).astype(np.uint8).reshape(n, 2, 4, 32)
    low = pack_nibbles(q.reshape(n, 2, 128)).reshape(n, 128)
    high = np.bitwise_or.reduce(q >> 4 << _PAIR, axis=2).reshape(n, 64)
    return join(low, high, scale.view(np.uint8), d)


def _fit(x: np.ndarray) -> np.ndarray:
    """The step [N, 16] that minimises |step * q - x| over codes -32 .. 31."""
    peak = np.take_along_axis(x, np.abs(x).argmax(axis=-1)[..., None], axis=-1)
    best = np.full(x.shape[:2], np.inf, np.float32)
    step = np.zeros_like(best)
    for part in _SPANS:
        q = _codes(x, peak * np.float32(part / -32))
        s = (x * q).sum(axis=-1) * inverse(np.square(q).sum(axis=-1))
        error = np.square(s[..., None] * q - x).sum(axis=-1)
        better = error < best
        best[better], step[better] = error[better], s[better]
    return step


def _codes(x: np.ndarray, step: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(x * inverse(step)), -32, 31)


register_blocks("q6_k", decode, encode)
