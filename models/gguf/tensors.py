"""The tensor table of one GGUF file, with every size and offset checked before it is used."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...graph.dtype import BY_GGML_ID, DType
from ...graph.unread_types import NAMES, REFUSED
from .cursor import REFETCH, Cursor, show

MAX_NAME = 63
MAX_DIMS = 4
_I64_MAX = (1 << 63) - 1
# An entry has at least an 8-byte name length, a u32 rank, an i32 type and a u64 offset.
_MIN_ENTRY = 24
_ROW = tuple(struct.Struct(f"<{n}qiQ") for n in range(MAX_DIMS + 1))


@dataclass(frozen=True, eq=False)
class GgufTensor:
    """A tensor of a file: shape in numpy order (the reverse of the file's ne), and its raw storage
    as a read-only uint8 vector on the mapped file. `decode` of graph.codec makes numbers of it.

    data starts where the file puts it: at a multiple of the file's alignment, 32 unless declared
    otherwise. give_back: takes what was read of a part of data out of memory; None where that
    lies in a copy of the file."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    data: np.ndarray
    shard_path: Path
    give_back: Callable[[np.ndarray], None] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of storage."""
        return self.data.size


@dataclass(frozen=True)
class TensorInfo:
    """A row of the table: shape in numpy order; start and nbytes are file positions, in bytes.
    dtype: None for a type id that is not known, whose bytes reach to the next tensor."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    dtype: DType | None
    start: int
    nbytes: int

    @property
    def type_name(self) -> str:
        """The type's name, or the number of one that has none here."""
        return self.dtype.name if self.dtype else NAMES.get(self.type_id, f"type {self.type_id}")

    @property
    def n_elements(self) -> int:
        """Numbers that it holds."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class TensorTable:
    """The rows, and why tensors cannot be read although the table is well formed. unknown: a type
    that is not known; cut: data beyond the end of the file, which lacks `missing` bytes."""

    rows: tuple[TensorInfo, ...]
    unknown: str = ""
    cut: str = ""
    missing: int = 0


@dataclass(frozen=True)
class _RawInfo:
    name: str
    ne: tuple[int, ...]
    type_id: int
    offset: int


def read_table(cursor: Cursor, count: int, alignment: int) -> TensorTable:
    """Read `count` rows at the cursor and compare them with the size of the file.

    Raises GgufError for damage. A tensor type that is not known, and data that the file does not
    reach to, are no damage of the table: they are told in it, since metadata and rows are sound."""
    cursor.where = "tensor table"
    if count * _MIN_ENTRY > cursor.left:
        raise cursor.error(
            f"{count} tensors need at least {count * _MIN_ENTRY} bytes, got {cursor.left}; "
            f"{REFETCH}"
        )
    rows = tuple(_place(cursor, list(_read_rows(cursor, count)), alignment))
    unknown = next((_unknown_type(cursor, row) for row in rows if row.dtype is None), "")
    beyond = [row for row in rows if row.start + row.nbytes > cursor.size]
    if not beyond:
        return TensorTable(rows, unknown)
    missing = max(row.start + row.nbytes for row in beyond) - cursor.size
    return TensorTable(rows, unknown, _cut(cursor, beyond[0], missing), missing)


def _read_rows(cursor: Cursor, count: int) -> Iterator[_RawInfo]:
    names: set[str] = set()
    for index in range(count):
        cursor.where = f"tensor {index + 1} of {count}"
        name = cursor.name("name", MAX_NAME)
        cursor.where = f"tensor {show(name)}"
        if name in names:
            raise cursor.error("occurs twice, expected once; convert the model again")
        names.add(name)
        n_dims = cursor.u32("number of dimensions")
        if n_dims > MAX_DIMS:
            raise cursor.error(f"must have at most {MAX_DIMS} dimensions, got {n_dims}; {REFETCH}")
        *ne, type_id, offset = cursor.unpack(_ROW[n_dims], "dimensions, type and offset")
        if any(n < 0 for n in ne):
            raise cursor.error(f"dimensions must be >= 0, got {ne}; {REFETCH}")
        yield _RawInfo(name, tuple(ne), type_id, offset)


def _place(cursor: Cursor, raw: list[_RawInfo], alignment: int) -> Iterator[TensorInfo]:
    data_start = _align(cursor.pos, alignment)
    end = max(cursor.size - data_start, 0)
    expected = 0
    for index, info in enumerate(raw):
        cursor.where = f"tensor {show(info.name)}"
        dtype = BY_GGML_ID.get(info.type_id)
        nbytes = _nbytes(cursor, info.ne, dtype)
        if info.offset != expected:
            # Neither gaps nor data that two tensors share: ggml writes one behind the other.
            before = f", the padded end of tensor {show(raw[index - 1].name)}," if index else ","
            raise cursor.error(f"offset must be {expected}{before} got {info.offset}; {REFETCH}")
        if dtype is None:
            behind = raw[index + 1].offset if index + 1 < len(raw) else max(end, expected)
            nbytes = _reach(cursor, behind, expected, alignment if index + 1 < len(raw) else 1)
        # ggml counts a missing dimension as 1, so rank 0 is one element.
        shape = info.ne[::-1] or (1,)
        yield TensorInfo(info.name, shape, info.type_id, dtype, data_start + expected, nbytes)
        expected = _align(expected + nbytes, alignment)


def _reach(cursor: Cursor, behind: int, start: int, alignment: int) -> int:
    """Bytes from `start` to the offset behind it, of a tensor whose type does not tell its size."""
    if behind < start or behind % alignment:
        raise cursor.error(
            f"the tensor behind it must have an offset of {start} or more that is a multiple of "
            f"{alignment}, got {behind}; {REFETCH}"
        )
    return behind - start


def _nbytes(cursor: Cursor, ne: tuple[int, ...], dtype: DType | None) -> int:
    """Bytes of storage, 0 where the type is not known. Raises GgufError for impossible sizes."""
    row = ne[0] if ne else 1
    if dtype and row % dtype.block:
        raise cursor.error(
            f"rows of {dtype.name} must be whole blocks of {dtype.block} elements, "
            f"got ne[0] = {row}; {REFETCH}"
        )
    # Zero dimensions count as 1 here: an array of shape (2**62, 2**62, 0) breaks numpy too.
    bound = 1
    for n in ne:
        bound *= n or 1
    nbytes = bound // dtype.block * dtype.nbytes if dtype else 0
    if bound > _I64_MAX or nbytes > _I64_MAX:
        raise cursor.error(f"size must be below 2**63, got dimensions {list(ne)}; {REFETCH}")
    return 0 if 0 in ne else nbytes


def _align(position: int, alignment: int) -> int:
    return (position + alignment - 1) & -alignment


def _unknown_type(cursor: Cursor, row: TensorInfo) -> str:
    told = f"{cursor.path}: tensor {show(row.name)} has type id {row.type_id}"
    if row.type_id in NAMES:
        return f"{told}, {row.type_name}: {REFUSED[row.type_name]}"
    known = ", ".join(f"{i} {d.name}" for i, d in sorted(BY_GGML_ID.items()))
    return f"{told}, expected a known one ({known}); convert or quantise the model to one of these"


def _cut(cursor: Cursor, row: TensorInfo, missing: int) -> str:
    return (
        f"{cursor.path}: tensor {show(row.name)}: data must lie within the file, got a file of "
        f"{cursor.size} bytes and data that ends at byte {row.start + row.nbytes}; it is truncated "
        f"and lacks its last {missing} bytes: fetch it again"
    )
