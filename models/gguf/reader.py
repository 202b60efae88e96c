"""One GGUF file, mapped and checked: header, metadata, tensor table, bounds of every tensor."""

from __future__ import annotations

import mmap
import os
import stat
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn

import numpy as np

from ...graph.errors import GgufError, ModelError
from .cursor import REFETCH, Cursor
from .metadata import Metadata, read_metadata
from .pages import give_back
from .tensors import GgufTensor, TensorTable, read_table
from .typed import TypedKeys

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
_OLD_MAGICS = (b"lmgg", b"fmgg", b"tjgg", b"algg")
_PIECE = 1 << 26
_LFS = b"version https://git-lfs"
MAP, READ = "map", "read"


class Stamp(NamedTuple):
    """What tells that a file was written to: its identity on the disk, its size in bytes and when
    it was last written, in nanoseconds."""

    device: int
    inode: int
    size: int
    written: int

    @classmethod
    def of(cls, found: os.stat_result) -> Stamp:
        """The stamp of a file."""
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


class Container(TypedKeys):
    """A single file, complete or one shard of several. Raises GgufError for any damage.

    load: "map" reads tensors from the file as they are used, "read" copies the file into memory.
    whole: whether data that the file does not reach to is refused here, or when tensors are read.
    """

    def __init__(self, path: Path, load: str = MAP, whole: bool = True) -> None:
        self.path = path
        buf, stamp = open_bytes(path, load)
        self._mapped = stamp if load == MAP else None
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
        if whole and self.table.cut:
            raise GgufError(self.table.cut)
        self._buf: mmap.mmap | None = buf

    def tensors(self) -> list[GgufTensor]:
        """The tensors in table order. Raises GgufError where they cannot be read, or after the
        file was closed."""
        fault = self.table.cut or self.table.unknown
        if fault:
            raise GgufError(fault)
        if self._buf is None:
            raise GgufError(f"{self.path}: tensors read after the file was closed")
        raw = np.frombuffer(self._buf, np.uint8)
        raw.flags.writeable = False
        back = partial(give_back, self._buf) if self._mapped is not None else None
        return [
            GgufTensor(t.name, t.shape, t.dtype, raw[t.start : t.start + t.nbytes], self.path, back)
            for t in self.table.rows
            if t.dtype
        ]

    def check_unchanged(self) -> None:
        """Raise ModelError where the mapped file was written to or cut since it was opened: what
        lies beyond a new end cannot be read without ending the process. A file that was replaced
        or deleted is no trouble, for the mapping keeps the old one."""
        if self._mapped is None:
            return
        try:
            now = Stamp.of(os.stat(self.path))
        except OSError:
            return
        before = self._mapped
        if now != before and now[:2] == before[:2]:
            raise ModelError(
                f"{self.path}: was written to after it was loaded ({before.size} bytes then, "
                f"{now.size} now), and weights are read from it as they are needed; load it again, "
                'or copy it into memory with load="read" (--load read)'
            )

    def give_back(self) -> None:
        """Take tensors that were read out of memory, where they are read from the file."""
        if self._mapped is not None and self._buf is not None:
            give_back(self._buf)

    def release(self) -> None:
        """Let go of the mapping. It ends when no tensor view needs it any more."""
        self.metadata.release()
        self._buf = None


def open_bytes(path: Path, load: str = MAP) -> tuple[mmap.mmap, Stamp]:
    """The bytes of a regular, non-empty file, mapped ("map") or copied into memory ("read"), and
    the file's stamp before. Raises GgufError for anything else."""
    try:
        # A FIFO would block at open, so its kind is looked at first.
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise GgufError(f"{path}: is a folder, expected a .gguf file; name a file in it")
        if not stat.S_ISREG(mode):
            raise GgufError(f"{path}: is not a regular file; name a .gguf file")
        with open(path, "rb") as file:
            stamp = Stamp.of(os.fstat(file.fileno()))
            if stamp.size == 0:
                raise GgufError(f"{path}: header: the file is empty; fetch it again")
            if load == MAP:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), stamp
            return _copied(file, stamp.size, path), stamp
    except FileNotFoundError:
        raise GgufError(f"{path}: no such file; check the path") from None
    except GgufError:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise GgufError(f"{path}: cannot be opened: {reason}") from None


def _copied(file: BinaryIO, size: int, path: Path) -> mmap.mmap:
    """The file in memory of its own, which starts at a page as a mapping of the file does."""
    copy = mmap.mmap(-1, size)
    with memoryview(copy) as view:
        done = 0
        while done < size:
            got = file.readinto(view[done : done + _PIECE])  # type: ignore[attr-defined]
            if not got:
                raise GgufError(f"{path}: became shorter while it was read; fetch it again")
            done += got
    return copy


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
