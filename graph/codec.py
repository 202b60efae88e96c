"""The registry of block codecs: how raw storage of a DType becomes float32 and back.

The IR knows sizes only; each codec file registers its pair here, so that op references and the
test harness can read quantised tensors without knowing any format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .dtype import DType, dtype
from .errors import DTypeError
from .late import import_codecs
from .unread_types import REFUSED


@dataclass(frozen=True)
class Codec:
    """decode: raw uint8 [..., row_bytes] -> f32 [..., n]; encode: f32 [..., n] -> raw uint8.

    encode is None where only decoding is known."""

    decode: Callable[[np.ndarray], np.ndarray]
    encode: Callable[[np.ndarray], np.ndarray] | None = None


_CODECS: dict[str, Codec] = {}


def register_codec(name: str, codec: Codec) -> None:
    """Add the codec of a dtype by name. Raises DTypeError if there is one already."""
    if dtype(name).name in _CODECS:
        raise DTypeError(f"{name}: a codec is registered already")
    _CODECS[name] = codec


def _find(d: DType) -> Codec | None:
    import_codecs()
    return _CODECS.get(d.name)


def has_codec(d: DType) -> bool:
    """True when raw storage of d can be decoded."""
    return d.numpy is not None or _find(d) is not None


def decode(d: DType, raw: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Raw storage (any array of the right number of bytes) as an array of `shape`.

    Plain types come back as their own numpy type, block types and bf16 as float32."""
    if d.numpy is not None:
        return np.ascontiguousarray(raw).view(d.numpy).reshape(shape)
    codec = _find(d)
    if codec is None:
        why = f" ({REFUSED[d.name].why})" if d.name in REFUSED else ""
        raise DTypeError(f"{d.name}: no codec{why}; known: {', '.join(sorted(_CODECS))}")
    if 0 in shape:
        return np.zeros(shape, np.float32)
    row = d.row_bytes(shape[-1])
    data = np.ascontiguousarray(raw).view(np.uint8).reshape(*shape[:-1], row)
    return codec.decode(data).reshape(shape)


def encode(d: DType, values: np.ndarray) -> np.ndarray:
    """Float values [..., n] as raw uint8 [..., row_bytes(n)]. Raises DTypeError without encoder."""
    if d.numpy is not None:
        return np.ascontiguousarray(values, d.numpy).view(np.uint8)
    codec = _find(d)
    if codec is None or codec.encode is None:
        raise DTypeError(f"{d.name}: no encoder")
    d.row_bytes(values.shape[-1])
    return codec.encode(np.ascontiguousarray(values, np.float32))
