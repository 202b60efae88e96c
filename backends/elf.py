"""Whether a file is a whole shared library, before the loader maps it.

A loader maps what the program headers say. Of a file that ends before that, pages beyond the end
kill the process when they are read; opening a FIFO waits for a writer. Format: System V gABI,
chapters 4 (ELF header) and 5 (program header)."""

from __future__ import annotations

import stat
import struct
import sys
from pathlib import Path

_HEADER = struct.Struct("16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("IIQQQQQQ")
_LOAD = 1


def check_library(path: Path) -> None:
    """Raise ValueError for what is no regular file and for a cut ELF file, OSError for what cannot
    be read. Files of another form or word size pass: the loader says what is wrong with them."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"a shared library is a regular file, this is {_kind(status.st_mode)}")
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
        if head[:4] != b"\x7fELF":
            return
        needed = _HEADER.size
        if len(head) == needed:
            _, *_, at, _, _, _, size, count, _, _, _ = _HEADER.unpack(head)
            if head[4:6] != bytes([2, 1 if sys.byteorder == "little" else 2]):
                return
            needed = at + size * count
            if size == _SEGMENT.size and needed <= status.st_size:
                file.seek(at)
                needed = max(needed, _end(file.read(size * count)))
    if needed > status.st_size:
        raise ValueError(
            f"it is cut: it should have {needed} bytes or more, it has {status.st_size}"
        )


def _end(segments: bytes) -> int:
    """Where in the file the last segment that is mapped ends."""
    ends = [0]
    for kind, _, offset, _, _, in_file, _, _ in _SEGMENT.iter_unpack(segments):
        if kind == _LOAD:
            ends.append(offset + in_file)
    return max(ends)


def _kind(mode: int) -> str:
    kinds = (
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    )
    return next((text for test, text in kinds if test(mode)), "something else")
