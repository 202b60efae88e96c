"""One GGUF file, mapped and checked: header, metadata, tensor table, bounds of every tensor."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path
from typing import NoReturn

import numpy as np

from ...graph.errors import GgufError
from .cursor import REFETCH, Cursor
from .metadata import Metadata, read_metadata
from .tensors import GgufTensor, TensorTable, read_table
from .typed import TypedKeys

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
_OLD_MAGICS = (b"lmgg", b"fmgg", b"tjgg", b"algg")
_LFS = b"version https://git-lfs"


class Container(TypedKeys):
    """A single file, complete or one shard of several. Raises GgufError for any damage."""

    def __init__(self, path: Path) -> None:
        self.path = path
        buf = map_file(path)
        cursor = Cursor(path, buf)
        n_tensors, n_kv = _read_header(cursor)
        self.metadata: Metadata = read_metadata(cursor, n_kv)
        alignment = self.get_u32("general.alignment", DEFAULT_ALIGNMENT)
        if alignment == 0 or alignment & (alignment - 1):
            raise GgufError(
                f"{path}: key 'general.alignment' must be a power of two, got {alignment}; "
                "convert the model again"
            )
        self.table: TensorTable = read_table(cursor, n_tensors, alignment)
        self._buf: mmap.mmap | None = buf

    def tensors(self) -> list[GgufTensor]:
        """The tensors in table order. Raises the fault of a table that cannot be used."""
        if self.table.fault:
            raise GgufError(self.table.fault)
        if self._buf is None:
            raise GgufError(f"{self.path}: tensors read after the file was closed")
        raw = np.frombuffer(self._buf, np.uint8)
        return [
            GgufTensor(t.name, t.shape, t.dtype, raw[t.start : t.start + t.nbytes], self.path)
            for t in self.table.rows
        ]

    def release(self) -> None:
        """Let go of the mapping. It ends when no tensor view needs it any more."""
        self.metadata.release()
        self._buf = None


def map_file(path: Path) -> mmap.mmap:
    """A read-only mapping of a regular, non-empty file. Raises GgufError for anything else."""
    try:
        # A FIFO would block at open, so its kind is looked at first.
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise GgufError(f"{path}: is a folder, expected a .gguf file; name a file in it")
        if not stat.S_ISREG(mode):
            raise GgufError(f"{path}: is not a regular file; name a .gguf file")
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise GgufError(f"{path}: is empty, expected a GGUF file; fetch it again")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise GgufError(f"{path}: no such file; check the path") from None
    except GgufError:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise GgufError(f"{path}: cannot be opened: {reason}") from None


def _read_header(cursor: Cursor) -> tuple[int, int]:
    magic = cursor.buf[:4]
    if magic == MAGIC[::-1]:
        _byte_swapped(cursor, "magic", repr(magic))
    if magic != MAGIC:
        raise cursor.error(f"magic must be {MAGIC!r}, got {magic!r}; {_hint(cursor)}")
    cursor.pos = 4
    version = cursor.u32("version")
    if version and version & 0xFFFF == 0:
        _byte_swapped(cursor, "version", f"{version:#010x}")
    if version not in VERSIONS:
        raise cursor.error(
            f"version must be one of {', '.join(map(str, VERSIONS))}, got {version}; "
            "convert the model again"
        )
    n_tensors, n_kv = cursor.i64("number of tensors"), cursor.i64("number of keys")
    for what, count in (("tensors", n_tensors), ("keys", n_kv)):
        if count < 0:
            raise cursor.error(f"number of {what} must be >= 0, got {count}; {REFETCH}")
    return n_tensors, n_kv


def _byte_swapped(cursor: Cursor, what: str, got: str) -> NoReturn:
    raise cursor.error(
        f"the file is in the other byte order (big-endian): {what} reads as {got}; "
        "convert it to little-endian"
    )


def _hint(cursor: Cursor) -> str:
    head = cursor.buf[:64]
    if head.startswith(_LFS):
        return "this is a Git LFS pointer: fetch the file itself with `git lfs pull`"
    if head[:4] in _OLD_MAGICS:
        return "this is the GGML format before GGUF: convert the model again"
    return "this is not a GGUF file: convert the model to GGUF"
