"""Memory of mapped files."""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np

# The most that a read of one byte brings into memory around it (Linux: a huge page of the file).
AROUND = 1 << 21


def give_back(mapped: mmap.mmap, part: np.ndarray | None = None) -> None:
    """Take what was read of a mapped file, or of the part of it that an array views, out of this
    process's memory: files larger than memory can be gone through once. Views stay as they are;
    what they read next comes from the file.

    Only for mappings of files: memory that is no file's would lose its values. Does nothing where
    the system has no such advice, or does not take it for these pages."""
    if not hasattr(mmap, "MADV_DONTNEED"):
        return
    start, end = 0, len(mapped)
    if part is not None:
        first = part.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data
        start = first // AROUND * AROUND
        end = min(-(-(first + part.nbytes) // AROUND) * AROUND, end)
    with suppress(OSError):
        mapped.madvise(mmap.MADV_DONTNEED, start, end - start)
