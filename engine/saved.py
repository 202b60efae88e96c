"""The byte form of a saved sequence.

MAGIC, header length u32, CRC-32 u32 of all that follows, header (JSON, UTF-8), then the arrays one
after the other. The header has the format's version, the model's fingerprint, memory kinds, tokens,
and each array's name, type and shape. All little-endian."""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..graph.errors import RequestError

MAGIC, VERSION = b"RRSEQ\x00\x00\x01", 1
_PREFIX = struct.Struct("<II")
_TYPES = ("|u1", "<u2", "<f2", "<f4")


def pack(
    model: str, kinds: Mapping[str, Any], tokens: Sequence[int], arrays: Mapping[str, np.ndarray]
) -> bytes:
    """Tokens and arrays of a sequence as bytes."""
    header = {
        "version": VERSION,
        "model": model,
        "kinds": dict(kinds),
        "tokens": [int(t) for t in tokens],
        "arrays": [[name, a.dtype.str, list(a.shape)] for name, a in arrays.items()],
    }
    text = json.dumps(header).encode()
    rest = b"".join((text, *(np.ascontiguousarray(a).tobytes() for a in arrays.values())))
    return MAGIC + _PREFIX.pack(len(text), zlib.crc32(rest)) + rest


def unpack(
    data: bytes, model: str, kinds: Mapping[str, Any], n_vocab: int
) -> tuple[list[int], dict[str, np.ndarray]]:
    """Tokens and arrays from bytes. Raises RequestError for bytes that are damaged, of another
    version or model, of other memory kinds, or with tokens outside a vocabulary of n_vocab."""
    start = len(MAGIC) + _PREFIX.size
    if data[: len(MAGIC)] != MAGIC or len(data) < start:
        raise RequestError("saved sequence: it should start with riverrun's mark, it does not")
    size, crc = _PREFIX.unpack_from(data, len(MAGIC))
    rest = memoryview(data)[start:]
    if zlib.crc32(rest) != crc:
        raise RequestError(
            f"saved sequence: the checksum of its {len(data)} bytes should be {crc:08x}; they are "
            "cut off or damaged"
        )
    try:
        header = json.loads(bytes(rest[:size]))
        version, found, saved = header["version"], header["model"], header["kinds"]
        tokens = [_token(t) for t in header["tokens"]]
        shapes = [(str(n), str(t), [int(x) for x in s]) for n, t, s in header["arrays"]]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise RequestError(f"saved sequence: its header is damaged ({error})") from None
    _require("version", VERSION, version)
    _require("model", model, found)
    for name, kind in kinds.items():
        _require(name, kind, saved.get(name) if isinstance(saved, dict) else None)
    for token in tokens:
        if not 0 <= token < n_vocab:
            raise RequestError(
                f"saved sequence: its tokens should be from 0 to {n_vocab - 1}, got {token}"
            )
    return tokens, _arrays(rest[size:], shapes)


def _token(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"a token should be a whole number, got {value!r}")
    return value


def _require(what: str, want: object, got: object) -> None:
    if want != got:
        raise RequestError(
            f"saved sequence: its {what} should be {want!r}, got {got!r}; it belongs elsewhere"
        )


def _arrays(
    body: memoryview, shapes: Sequence[tuple[str, str, list[int]]]
) -> dict[str, np.ndarray]:
    sizes = []
    for name, kind, shape in shapes:
        if kind not in _TYPES or min(shape, default=0) < 0:
            raise RequestError(f"saved sequence: array {name!r} has type {kind!r}, shape {shape}")
        sizes.append(math.prod(shape) * np.dtype(kind).itemsize)
    if sum(sizes) != len(body):
        raise RequestError(
            f"saved sequence: {sum(sizes)} bytes of arrays should follow, got {len(body)}"
        )
    arrays, at = {}, 0
    for (name, kind, shape), size in zip(shapes, sizes, strict=True):
        arrays[name] = np.frombuffer(body, kind, math.prod(shape), at).reshape(shape)
        at += size
    return arrays
