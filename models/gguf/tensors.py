"""The tensor table of one GGUF file, with every size and offset checked before it is used."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...graph.dtype import BY_GGML_ID, DType
from .cursor import REFETCH, Cursor, show

MAX_NAME = 63
MAX_DIMS = 4
_I64_MAX = (1 << 63) - 1
_U64_MAX = (1 << 64) - 1
# An entry has at least an 8-byte name length, a u32 rank, an i32 type and a u64 offset.
_MIN_ENTRY = 24
_ROW = tuple(struct.Struct(f"<{n}qiQ") for n in range(MAX_DIMS + 1))


@dataclass(frozen=True, eq=False)
class GgufTensor:
    """A tensor of a file: shape in numpy order (the reverse of the file's ne), and its raw storage
    as a read-only uint8 vector on the mapped file. `decode` of graph.codec makes numbers of it.

    data starts where the file puts it: at a multiple of the file's alignment, 32 unless declared
    otherwise."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    data: np.ndarray
    shard_path: Path

    @property
    def nbytes(self) -> int:
        """Bytes of storage."""
        return self.data.size


@dataclass(frozen=True)
class TensorInfo:
    """A row of the table: start and nbytes are file positions, in bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    start: int
    nbytes: int


@dataclass(frozen=True)
class TensorTable:
    """The rows; or, in `fault`, why there are none although the file is well formed."""

    rows: tuple[TensorInfo, ...]
    fault: str = ""


@dataclass(frozen=True)
class _RawInfo:
    name: str
    ne: tuple[int, ...]
    type_id: int
    offset: int


def read_table(cursor: Cursor, count: int, alignment: int) -> TensorTable:
    """Read `count` rows at the cursor and check them against the size of the file.

    Raises GgufError for damage. An unknown tensor type is not damage: it makes the table unusable
    and is kept as its fault, since the metadata is sound."""
    cursor.where = "tensor table"
    if count * _MIN_ENTRY > cursor.left:
        raise cursor.error(
            f"{count} tensors need at least {count * _MIN_ENTRY} bytes, got {cursor.left}; "
            f"{REFETCH}"
        )
    raw = list(_read_rows(cursor, count))
    for info in raw:
        if info.type_id not in BY_GGML_ID:
            return TensorTable((), _unknown_type(cursor, info))
    return TensorTable(tuple(_place(cursor, raw, alignment)))


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
    expected = 0
    for info in raw:
        cursor.where = f"tensor {show(info.name)}"
        dtype = BY_GGML_ID[info.type_id]
        nbytes = _nbytes(cursor, info.ne, dtype)
        if info.offset != expected:
            raise cursor.error(
                f"offset must be {expected}, the padded end of the tensor before it, "
                f"got {info.offset}; {REFETCH}"
            )
        start = data_start + expected
        if start + nbytes > cursor.size:
            raise cursor.error(
                f"data must lie within the file, got a file of {cursor.size} bytes and data "
                f"that ends at byte {start + nbytes}; {REFETCH}"
            )
        # ggml counts a missing dimension as 1, so rank 0 is one element.
        yield TensorInfo(info.name, info.ne[::-1] or (1,), dtype, start, nbytes)
        expected = _align(expected + nbytes, alignment)


def _nbytes(cursor: Cursor, ne: tuple[int, ...], dtype: DType) -> int:
    row = ne[0] if ne else 1
    if row % dtype.block:
        raise cursor.error(
            f"rows of {dtype.name} must be whole blocks of {dtype.block} elements, "
            f"got ne[0] = {row}; {REFETCH}"
        )
    # Zero dimensions count as 1 here: an array of shape (2**62, 2**62, 0) breaks numpy too.
    bound = 1
    for n in ne:
        bound *= n or 1
    if bound > _I64_MAX or bound // dtype.block * dtype.nbytes > _I64_MAX:
        raise cursor.error(f"size must be below 2**63, got dimensions {list(ne)}; {REFETCH}")
    return 0 if 0 in ne else bound // dtype.block * dtype.nbytes


def _align(position: int, alignment: int) -> int:
    return (position + alignment - 1) & -alignment


def _unknown_type(cursor: Cursor, info: _RawInfo) -> str:
    known = ", ".join(f"{i} {d.name}" for i, d in sorted(BY_GGML_ID.items()))
    return (
        f"{cursor.path}: tensor {show(info.name)} has type id {info.type_id}, expected a known "
        f"one ({known}); convert or quantise the model to one of these"
    )
