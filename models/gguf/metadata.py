"""The key-value section of a GGUF file: scanned and checked once, values built when asked for.

Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from mmap import mmap
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...graph.errors import GgufError
from .cursor import REFETCH, Cursor, show

Value = int | float | bool | str | list[str] | np.ndarray

MAX_ARRAY = 1 << 30
MAX_KEY = 0xFFFF
_ARRAY = 9
# An entry has at least an 8-byte key length, a 1-byte key, a 4-byte type and a 1-byte value.
_MIN_ENTRY = 14
_KINDS = {
    0: "u8",
    1: "i8",
    2: "u16",
    3: "i16",
    4: "u32",
    5: "i32",
    6: "f32",
    7: "bool",
    8: "str",
    10: "u64",
    11: "i64",
    12: "f64",
}
NUMPY = {
    "u8": "<u1",
    "i8": "<i1",
    "u16": "<u2",
    "i16": "<i2",
    "u32": "<u4",
    "i32": "<i4",
    "f32": "<f4",
    "bool": "<u1",
    "u64": "<u8",
    "i64": "<i8",
    "f64": "<f8",
}
KIND_IDS = {kind: number for number, kind in _KINDS.items()}
_SIZES = {kind: np.dtype(code).itemsize for kind, code in NUMPY.items()}


class Entry(NamedTuple):
    """Where a value lies: kind of the value or of the array's items, number of items (-1 for a
    scalar), and the byte range of the payload (for a string its text, for an array its items)."""

    kind: str
    n_items: int
    start: int
    stop: int

    @property
    def value_type(self) -> str:
        """The declared type: "u32", "str", "array[f32]"."""
        return self.kind if self.n_items < 0 else f"array[{self.kind}]"


class Metadata(Mapping[str, Value]):
    """Keys in file order with their values: int, float, bool, str, list[str] for arrays of
    strings, read-only numpy arrays for arrays of numbers.

    Values are built on first access and kept. Access raises KeyError for an absent key and
    GgufError for a string that is not UTF-8 or after the file was closed."""

    def __init__(self, path: Path, buf: mmap, entries: dict[str, Entry]) -> None:
        self._path = path
        self._buf: mmap | None = buf
        self._entries = entries
        self._values: dict[str, Value] = {}

    def __getitem__(self, key: str) -> Value:
        entry = self._entries[key]
        if self._buf is None:
            raise GgufError(f"{self._path}: key {show(key)} read after the file was closed")
        if key not in self._values:
            try:
                self._values[key] = _build(self._buf, entry)
            except UnicodeDecodeError as error:
                raise GgufError(
                    f"{self._path}: key {show(key)}: text must be UTF-8, got bytes "
                    f"{error.object[error.start : error.end]!r}; convert the model again"
                ) from None
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def value_type(self, key: str) -> str:
        """The declared type of a key: "u32", "str", "array[i32]". Raises KeyError if absent."""
        return self._entries[key].value_type

    def entry(self, key: str) -> Entry:
        """Type, count and place of a key's value. Raises KeyError if absent."""
        return self._entries[key]

    def payload(self, key: str) -> bytes:
        """The bytes of a value as the file has them: of a string its text, of an array its items.

        Raises KeyError if absent, GgufError after the file was closed."""
        entry = self._entries[key]
        if self._buf is None:
            raise GgufError(f"{self._path}: key {show(key)} read after the file was closed")
        return self._buf[entry.start : entry.stop]

    def release(self) -> None:
        """Let go of the mapped file; later access to a value raises GgufError."""
        self._buf = None
        self._values.clear()


def read_metadata(cursor: Cursor, count: int) -> Metadata:
    """Scan `count` entries from the cursor. Raises GgufError on anything out of bounds,
    an unknown or nested type, an empty or repeated key."""
    cursor.where = "metadata"
    if count * _MIN_ENTRY > cursor.left:
        raise cursor.error(
            f"{count} keys need at least {count * _MIN_ENTRY} bytes, got {cursor.left}; {REFETCH}"
        )
    entries: dict[str, Entry] = {}
    for index in range(count):
        cursor.where = f"key {index + 1} of {count}"
        key = cursor.name("key", MAX_KEY)
        if not key:
            raise cursor.error("the key is empty, expected at least 1 byte; convert again")
        cursor.where = f"key {show(key)}"
        if key in entries:
            raise cursor.error("occurs twice, expected once; convert the model again")
        entries[key] = _read_entry(cursor)
    return Metadata(cursor.path, cursor.buf, entries)


def _read_entry(cursor: Cursor) -> Entry:
    kind_id = cursor.i32("value type")
    if kind_id == _ARRAY:
        return _read_array(cursor)
    kind = _kind(cursor, kind_id, "value type")
    if kind == "str":
        length = cursor.string_length("text")
        cursor.pos += length
        return Entry(kind, -1, cursor.pos - length, cursor.pos)
    start = cursor.pos
    cursor.skip(_SIZES[kind], f"{kind} value")
    return Entry(kind, -1, start, cursor.pos)


def _read_array(cursor: Cursor) -> Entry:
    kind_id = cursor.i32("array item type")
    if kind_id == _ARRAY:
        raise cursor.error("arrays of arrays are not allowed, got an array whose items are arrays")
    kind = _kind(cursor, kind_id, "array item type")
    count = cursor.u64("array count")
    if count > MAX_ARRAY:
        raise cursor.error(f"an array may hold {MAX_ARRAY} items, got a count of {count}")
    start = cursor.pos
    # A string takes at least its 8-byte length.
    cursor.need(count * _SIZES.get(kind, 8), f"array of {count} {kind}")
    if kind == "str":
        cursor.skip_strings(count)
    else:
        cursor.pos += count * _SIZES[kind]
    return Entry(kind, count, start, cursor.pos)


def _kind(cursor: Cursor, kind_id: int, what: str) -> str:
    if kind_id not in _KINDS:
        raise cursor.error(
            f"{what} must be one of the ids 0..12, got {kind_id}; the file is damaged or newer "
            "than this reader: fetch or convert it again"
        )
    return _KINDS[kind_id]


def _build(buf: mmap, entry: Entry) -> Value:
    kind, count, start, stop = entry
    raw = buf[start:stop]
    if kind == "str":
        return raw.decode("utf-8") if count < 0 else _strings(raw, count)
    items = np.frombuffer(raw, NUMPY[kind])
    array = items != 0 if kind == "bool" else items.astype(items.dtype.newbyteorder("="))
    if count < 0:
        return array[0].item()
    array.flags.writeable = False
    return array


def _strings(raw: bytes, count: int) -> list[str]:
    unpack, pos = struct.Struct("<Q").unpack_from, 0
    out = []
    for _ in range(count):
        start = pos + 8
        pos = start + unpack(raw, pos)[0]
        out.append(raw[start:pos].decode("utf-8"))
    return out
