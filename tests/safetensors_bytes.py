"""Safetensors files, written from the format's description."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

KINDS = {"F32": np.float32, "F16": np.float16, "F64": np.float64, "I64": np.int64, "U8": np.uint8}


def stored(array: np.ndarray, kind: str) -> bytes:
    if kind == "BF16":
        return (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return array.astype(KINDS[kind]).tobytes()


def write_safetensors(path: Path, tensors: dict[str, np.ndarray], kind: str) -> None:
    """A file of tensors of one type; bf16 cuts the lower halves of f32 off."""
    header, data = {}, b""
    for name, array in tensors.items():
        raw = stored(array, kind)
        ends = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": ends}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
