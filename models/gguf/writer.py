"""Writing GGUF files: metadata of any source, tensors piece by piece, under the final name at the
end."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ...graph.dtype import DType
from ...graph.errors import GgufError, RequestError
from .metadata import KIND_IDS, NUMPY, Metadata
from .reader import DEFAULT_ALIGNMENT, MAGIC
from .target import check_target, replacing
from .tensors import MAX_DIMS, MAX_NAME

VERSION = 3
QUANTIZATION_VERSION = 2  # of the block formats, as ggml counts them
_ARRAY = 9
_ROOM = 1 << 20  # bytes of disk kept free beside the file
_KIND_OF = {bool: "bool", int: "u32", float: "f32", str: "str"}


class Field(NamedTuple):
    """A metadata value as it lies in a file: its kind ("u32", "str", ...), the number of items, -1
    for a scalar, and the bytes of the value or of the items."""

    kind: str
    n_items: int
    payload: bytes

    def encoded(self) -> bytes:
        """The type and the value, after the key."""
        kind = KIND_IDS[self.kind]
        if self.n_items < 0:
            return struct.pack("<i", kind) + self.payload
        return struct.pack("<iiQ", _ARRAY, kind, self.n_items) + self.payload


@dataclass(frozen=True)
class NewTensor:
    """A tensor to write: shape in numpy order; pieces gives its storage in order, in arrays or
    bytes of any length."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    pieces: Callable[[], Iterable[Any]]

    @property
    def nbytes(self) -> int:
        """Bytes of storage."""
        return stored_bytes(self.shape, self.dtype)


def stored_bytes(shape: Sequence[int], kind: DType) -> int:
    """Bytes of a tensor. Raises DTypeError for rows that are no whole blocks."""
    return math.prod(shape[:-1]) * kind.row_bytes(shape[-1])


def scalar(kind: str, value: int | float | bool | str) -> Field:
    """A scalar of a kind: "u32", "f32", "bool", "str", ..."""
    if kind == "str":
        return Field(kind, -1, _string(str(value)))
    return Field(kind, -1, np.array(value, NUMPY[kind]).tobytes())


def array(kind: str, values: Sequence[Any]) -> Field:
    """An array of a kind."""
    if kind == "str":
        return Field(kind, len(values), b"".join(map(_string, values)))
    return Field(kind, len(values), np.asarray(values, NUMPY[kind]).tobytes())


def new_fields(values: Mapping[str, Any]) -> dict[str, Field]:
    """Metadata from Python's values: bool, str, int as u32, float as f32, and lists of one of them,
    ints as i32, an empty one as texts.

    Raises GgufError, naming the key, for others and for a number beyond its type."""
    return {key: _new_field(key, value) for key, value in values.items()}


def _new_field(key: str, value: Any) -> Field:
    listed = isinstance(value, list)
    items = value if listed else [value]
    types = {type(item) for item in items} or {str}
    kind = _KIND_OF.get(types.pop()) if len(types) == 1 else None
    if kind is None:
        raise GgufError(
            f"key {key!r} should be a bool, int, float or str, or a list of one of them, got "
            f"{str(value)[:80]}"
        )
    if kind == "u32":
        kind = "i32" if listed else kind
        low, high = np.iinfo(NUMPY[kind]).min, np.iinfo(NUMPY[kind]).max
        odd = next((n for n in items if not low <= n <= high), None)
        if odd is not None:
            raise GgufError(f"key {key!r} should be {low} to {high}, got {odd}")
    return array(kind, items) if listed else scalar(kind, value)


def fields_of(metadata: Metadata) -> dict[str, Field]:
    """The values of a file in its order, byte for byte."""
    return {key: _field(metadata, key) for key in metadata}


def _field(metadata: Metadata, key: str) -> Field:
    entry, payload = metadata.entry(key), metadata.payload(key)
    if entry.kind == "str" and entry.n_items < 0:
        payload = struct.pack("<Q", len(payload)) + payload
    return Field(entry.kind, entry.n_items, payload)


def write_gguf(
    path: Path,
    fields: Mapping[str, Field],
    tensors: Sequence[NewTensor],
    *,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[Path], None] | None = None,
) -> None:
    """Write a file. It appears under its name when it is whole; until then its bytes lie in a file
    beside it, which goes away when writing fails. progress: called with bytes of tensors written
    and their total; check: with the path of the whole file before it gets its name, and what this
    raises leaves none.

    Raises RequestError for a path that cannot be written, a file that is there (unless `force`),
    and a disk without room; GgufError for tensors that a file cannot hold."""
    check_target(path, force)
    alignment = _alignment(fields)
    head = _head(fields, tensors, alignment)
    total = sum(tensor.nbytes for tensor in tensors)
    needed = len(head) + total + alignment * len(tensors) + _ROOM
    try:
        with replacing(path, needed) as unfinished:
            with open(unfinished, "wb") as file:
                _put(file, [head], alignment)
                for done in _put_tensors(path, file, tensors, alignment):
                    if progress:
                        progress(done, total)
            if check:
                check(unfinished)
    except OSError as error:
        raise RequestError(f"{path}: cannot be written: {error.strerror or error}") from None


def _put_tensors(
    path: Path, file: BinaryIO, tensors: Sequence[NewTensor], alignment: int
) -> Iterator[int]:
    """Write the tensors; after each one the bytes of those written so far."""
    done = 0
    for tensor in tensors:
        written = _put(file, tensor.pieces(), alignment)
        if written != tensor.nbytes:
            raise GgufError(
                f"{path}: tensor {tensor.name!r} should have {tensor.nbytes} bytes, got {written}"
            )
        done += written
        yield done


def _put(file: BinaryIO, pieces: Iterable[Any], alignment: int) -> int:
    """Write pieces and zeros up to the next multiple of the alignment; the bytes of the pieces."""
    written = 0
    for piece in pieces:
        written += file.write(_bytes(piece))
    file.write(bytes(-written % alignment))
    return written


def _bytes(piece: Any) -> Any:
    return piece if isinstance(piece, bytes) else np.ascontiguousarray(piece).data.cast("B")


def _alignment(fields: Mapping[str, Field]) -> int:
    given = fields.get("general.alignment")
    return int.from_bytes(given.payload, "little") if given else DEFAULT_ALIGNMENT


def _head(fields: Mapping[str, Field], tensors: Sequence[NewTensor], alignment: int) -> bytes:
    parts = [MAGIC, struct.pack("<Iqq", VERSION, len(tensors), len(fields))]
    for key, field in fields.items():
        parts += [_string(key), field.encoded()]
    offset = 0
    for t in tensors:
        name = t.name.encode()
        if not 1 <= len(name) <= MAX_NAME or not 1 <= len(t.shape) <= MAX_DIMS:
            raise GgufError(
                f"tensor {t.name!r} {t.shape}: a file holds names of 1 to {MAX_NAME} bytes and 1 "
                f"to {MAX_DIMS} dimensions"
            )
        ne = t.shape[::-1]
        parts += [_string(t.name), struct.pack(f"<I{len(ne)}q", len(ne), *ne)]
        parts.append(struct.pack("<iQ", t.dtype.ggml_id, offset))
        offset += t.nbytes + -t.nbytes % alignment
    return b"".join(parts)


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw
