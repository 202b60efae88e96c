"""GGUF files built byte by byte, so that each field can be made wrong on its own."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

KIND_IDS = {
    "u8": 0,
    "i8": 1,
    "u16": 2,
    "i16": 3,
    "u32": 4,
    "i32": 5,
    "f32": 6,
    "bool": 7,
    "str": 8,
    "array": 9,
    "u64": 10,
    "i64": 11,
    "f64": 12,
}
_CODES = dict(zip(KIND_IDS, "BbHhIif?__Qqd", strict=True))


def string(text: str | bytes) -> bytes:
    """A length-prefixed string."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def item(kind: str, value: object) -> bytes:
    """A bare value."""
    return string(value) if kind == "str" else struct.pack("<" + _CODES[kind], value)  # type: ignore[arg-type]


def scalar(key: str | bytes, kind: str, value: object) -> bytes:
    """A key with a scalar value."""
    return string(key) + struct.pack("<i", KIND_IDS[kind]) + item(kind, value)


def array(key: str, kind: str, values: Sequence[object], count: int | None = None) -> bytes:
    """A key with an array value, whose count may lie."""
    head = struct.pack(
        "<iiQ", KIND_IDS["array"], KIND_IDS[kind], count if count is not None else len(values)
    )
    return string(key) + head + b"".join(item(kind, v) for v in values)


def info(
    name: str | bytes, ne: Sequence[int], type_id: int, offset: int, n_dims: int | None = None
) -> bytes:
    """A row of the tensor table, whose n_dims may lie."""
    head = string(name) + struct.pack("<I", len(ne) if n_dims is None else n_dims)
    return head + struct.pack(f"<{len(ne)}q", *ne) + struct.pack("<iQ", type_id, offset)


@dataclass
class Image:
    """The parts of a file. Counts default to the truth; alignment pads the data."""

    keys: list[bytes] = field(default_factory=list)
    infos: list[bytes] = field(default_factory=list)
    data: bytes = b""
    magic: bytes = b"GGUF"
    version: int = 3
    n_tensors: int | None = None
    n_kv: int | None = None
    alignment: int = 32

    def head(self) -> bytes:
        """Everything before the padding of the data."""
        n_tensors = len(self.infos) if self.n_tensors is None else self.n_tensors
        n_kv = len(self.keys) if self.n_kv is None else self.n_kv
        start = self.magic + struct.pack("<Iqq", self.version, n_tensors, n_kv)
        return start + b"".join(self.keys) + b"".join(self.infos)

    def build(self) -> bytes:
        """The whole file."""
        head = self.head()
        return head + bytes(-len(head) % self.alignment if self.infos else 0) + self.data

    def write(self, path: Path) -> Path:
        """Write the file and give its path back."""
        path.write_bytes(self.build())
        return path


def small() -> Image:
    """A valid file: a key of every type, tensors f32 (2, 3), q8_0 (1, 32) and f16 (4,)."""
    keys = [scalar("general.architecture", "str", "llama"), scalar("a.flag", "bool", True)]
    numbers = ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f32", "f64")
    keys += [scalar(f"a.{kind}", kind, 7) for kind in numbers]
    keys += [array(f"b.{kind}", kind, [1, 2, 3]) for kind in numbers]
    keys += [array("b.bool", "bool", [True, False]), array("b.str", "str", ["x", "", "ü→"])]
    floats = struct.pack("<6f", 0, 1, 2, 3, 4, 5) + bytes(8)
    block = struct.pack("<e32b", 0.5, *range(-16, 16)) + bytes(30)
    halves = struct.pack("<4e", 1, 2, 3, 4)
    infos = [
        info("w.f32", (3, 2), 0, 0),
        info("w.q8_0", (32, 1), 8, 32),
        info("w.f16", (4,), 1, 96),
    ]
    return Image(keys, infos, floats + block + halves)
