"""mxfp4: 32 elements in 17 bytes: exponent e, 16 bytes of nibbles. y = 2 ** (e - 128) * VALUES[q].

The elements are the E2M1 floats of the OCP Microscaling specification, here doubled, and the scale
is its E8M0 one, halved: at e = 0 and 1 it is a subnormal float. e = 255, its NaN, is read as a
scale like any other."""

from __future__ import annotations

import numpy as np

from ._blocks import join, nibbles, pack_nibbles, register_blocks

_SIZES = (0, 1, 2, 3, 4, 6, 8, 12)
VALUES = np.array((*_SIZES, *(-v for v in _SIZES)), np.float32)
_BETWEEN = (VALUES[1:8] + VALUES[:7]) / 2


def decode(blocks: np.ndarray) -> np.ndarray:
    """uint8 [N, 17] -> f32 [N, 32]."""
    scale = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)
    return scale * VALUES[nibbles(blocks[:, 1:])]


def encode(x: np.ndarray) -> np.ndarray:
    """f32 [N, 32] -> uint8 [N, 17], as the specification says: the largest element's power of two
    gets the largest power of E2M1, which is 4; halves go towards zero."""
    peak = np.abs(x).max(axis=-1, keepdims=True)
    e = np.where(peak > 0, np.clip(np.frexp(peak)[1] + 124, 0, 254), 0)
    size = np.searchsorted(_BETWEEN, np.abs(np.ldexp(x, 128 - e)))
    q = np.where((x < 0) & (size > 0), size + 8, size).astype(np.uint8)
    return join(e.astype(np.uint8), pack_nibbles(q))


register_blocks("mxfp4", decode, encode)
