"""Search for NaN and infinity in stored tensors, without decoding them."""

from __future__ import annotations

import numpy as np

from ...graph.errors import GgufError
from .cursor import show
from .tensors import GgufTensor

_CHUNK = 1 << 22
# The exponent bits of a float, all set in NaN and infinity, and its width in bytes.
_EXPONENT = {
    "f16": (0x7C00, 2),
    "bf16": (0x7F80, 2),
    "f32": (0x7F800000, 4),
    "f64": (0x7FF0000000000000, 8),
}
# Byte positions, in a block, of its f16 scales and minima.
_F16_SCALES: dict[str, tuple[int, ...]] = {
    "q4_0": (0,),
    "q4_1": (0, 2),
    "q5_0": (0,),
    "q5_1": (0, 2),
    "q8_0": (0,),
    "q2_k": (80, 82),
    "q3_k": (108,),
    "q4_k": (0, 2),
    "q5_k": (0, 2),
    "q6_k": (208,),
    "iq2_xxs": (0,),
    "iq2_xs": (0,),
    "iq2_s": (0,),
    "iq3_xxs": (0,),
    "iq3_s": (0,),
    "iq1_s": (0,),
    "iq4_nl": (0,),
    "iq4_xs": (0,),
    "tq1_0": (52,),
    "tq2_0": (64,),
}


def check_finite(tensor: GgufTensor) -> None:
    """Raise GgufError if a value, or a block scale, is NaN or infinite.

    Types that hold neither floats nor float scales pass, and so do the block types whose scale
    has another coding (mxfp4, nvfp4, iq1_m)."""
    name = tensor.dtype.name
    if name in _EXPONENT:
        _check(tensor, tensor.dtype.nbytes, (0,), name, "value")
    elif name in _F16_SCALES:
        _check(tensor, tensor.dtype.nbytes, _F16_SCALES[name], "f16", "scale of block")


def _check(tensor: GgufTensor, stride: int, places: tuple[int, ...], kind: str, what: str) -> None:
    mask, width = _EXPONENT[kind]
    items = tensor.data.reshape(-1, stride)
    for first in range(0, len(items), _CHUNK):
        chunk = items[first : first + _CHUNK]
        for place in places:
            field = np.ascontiguousarray(chunk[:, place : place + width])
            bits = field.view(f"<u{width}")[:, 0]
            bad = (bits & mask) == mask
            if bad.any():
                index = int(bad.argmax())
                raise GgufError(
                    f"{tensor.shard_path}: tensor {show(tensor.name)} ({tensor.dtype.name}): "
                    f"{what} {first + index} must be finite, got bits {int(bits[index]):#x}; "
                    "convert the model again"
                )
