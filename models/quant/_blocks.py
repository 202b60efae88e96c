"""What the block formats share: cutting rows into blocks, f16 fields, nibbles and bits.

A format gives two functions over flat blocks: uint8 [N, nbytes] -> f32 [N, block], and back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...graph.codec import Codec, register_codec
from ...graph.dtype import dtype
from ...graph.errors import DTypeError

BlockFn = Callable[[np.ndarray], np.ndarray]

# Elements per call of a block function: keeps temporaries in cache and memory bounded.
_CHUNK = 1 << 17
# Keeps sums of squares finite. Formats with f16 scales hold 65504 * 127 * 32 at most.
_MAX_VALUE = 1e9
_PAIR = np.arange(0, 8, 2, dtype=np.uint8)[:, None]


def register_blocks(name: str, decode_blocks: BlockFn, encode_blocks: BlockFn) -> None:
    """Register a block format's codec, which takes and gives any number of leading axes.

    Encoding raises DTypeError for values that are not finite or too large for the f16 scales, and
    both directions for rows that are not whole blocks."""
    d = dtype(name)
    step = _CHUNK // d.block

    def decode(raw: np.ndarray) -> np.ndarray:
        blocks, shape = _cut(name, raw, d.nbytes, d.block)
        out = np.empty((len(blocks), d.block), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            for i in range(0, len(blocks), step):
                out[i : i + step] = decode_blocks(blocks[i : i + step])
        return out.reshape(shape)

    def encode(values: np.ndarray) -> np.ndarray:
        blocks, shape = _cut(name, np.asarray(values, np.float32), d.block, d.nbytes)
        if not (np.abs(blocks) < _MAX_VALUE).all():
            raise DTypeError(
                f"{name}: values to encode must be finite and below {_MAX_VALUE:g}, got a peak of "
                f"{float(np.abs(blocks).max()):g}; scale the tensor down or keep it in f32"
            )
        out = np.empty((len(blocks), d.nbytes), np.uint8)
        with np.errstate(over="ignore", invalid="ignore"):
            for i in range(0, len(blocks), step):
                out[i : i + step] = encode_blocks(blocks[i : i + step])
        return out.reshape(shape)

    register_codec(name, Codec(decode, encode))


def _cut(name: str, rows: np.ndarray, size: int, new: int) -> tuple[np.ndarray, tuple[int, ...]]:
    """Rows as [N, size], and the shape of rows whose blocks have `new` items instead."""
    count, rest = divmod(rows.shape[-1], size)
    if rest:
        raise DTypeError(f"{name}: rows must be whole blocks of {size}, got {rows.shape[-1]}")
    blocks = np.ascontiguousarray(rows).reshape(rows.size // size, size)
    return blocks, (*rows.shape[:-1], count * new)


def f16_at(blocks: np.ndarray, at: int) -> np.ndarray:
    """The f16 field at byte `at` of each block, as f32 [N, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def f16_field(values: np.ndarray) -> np.ndarray:
    """f32 [N, 1] as the bytes of f16 [N, 2]. Raises DTypeError beyond the range of f16."""
    half = values.astype("<f2")
    if not np.isfinite(half).all():
        raise DTypeError(
            f"block scale must fit f16 (at most 65504), got {float(np.abs(values).max()):g}; "
            "scale the tensor down or keep it in f32"
        )
    return half.view(np.uint8)


def inverse(values: np.ndarray) -> np.ndarray:
    """1 / values, and 0 where the value or what it gives is out of range."""
    with np.errstate(divide="ignore"):
        out = np.float32(1) / values.astype(np.float32)
    return np.where(np.isfinite(out), out, np.float32(0))


def nibbles(packed: np.ndarray) -> np.ndarray:
    """uint8 [..., B] as 4-bit values [..., 2B]: all low halves, then all high halves."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def pack_nibbles(q: np.ndarray) -> np.ndarray:
    """The reverse of `nibbles`; only the low 4 bits of uint8 q count."""
    low, high = np.split(q & 15, 2, axis=-1)
    return low | high << 4


def pairs(packed: np.ndarray) -> np.ndarray:
    """uint8 [..., B] as 2-bit values [..., 4, B], the lowest two bits first."""
    return packed[..., None, :] >> _PAIR & 3


def pack_pairs(q: np.ndarray) -> np.ndarray:
    """The reverse of `pairs`; only the low 2 bits of uint8 q count."""
    return np.bitwise_or.reduce((q & 3) << _PAIR, axis=-2)


def bits(packed: np.ndarray) -> np.ndarray:
    """uint8 [N, B] as single bits [N, 8B], least significant first."""
    return np.unpackbits(packed, axis=-1, bitorder="little")


def pack_bits(q: np.ndarray) -> np.ndarray:
    """The reverse of `bits`."""
    return np.packbits(q, axis=-1, bitorder="little")


def join(*fields: np.ndarray) -> np.ndarray:
    """The fields of a block, side by side."""
    return np.concatenate(fields, axis=-1)


def quantize_signed(x: np.ndarray, levels: int) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric codes 0 .. 2*levels-1 of x [N, B], and the scale d [N, 1] with x ~ d*(q - levels).

    The value of largest magnitude gets code 0, so that the full range is used on its side."""
    peak = np.take_along_axis(x, np.abs(x).argmax(axis=-1)[:, None], axis=-1)
    d = peak / np.float32(-levels)
    q = np.trunc(x * inverse(d) + np.float32(levels + 0.5))
    return np.clip(q, 0, 2 * levels - 1).astype(np.uint8), d


def quantize_affine(x: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes 0 .. top of x [N, B], scale d and minimum m [N, 1] with x ~ d*q + m."""
    low = x.min(axis=-1, keepdims=True)
    d = (x.max(axis=-1, keepdims=True) - low) / np.float32(top)
    q = np.trunc((x - low) * inverse(d) + np.float32(0.5))
    return np.clip(q, 0, top).astype(np.uint8), d, low
