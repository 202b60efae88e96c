"""Memory of mapped files."""

from __future__ import annotations

import mmap


def give_back(mapped: mmap.mmap) -> None:
    """Take what was read of a mapped file out of this process's memory: files larger than memory
    can be gone through once. Views stay as they are; what they read next comes from the file.

    Only for mappings of files: memory that is no file's would lose its values. Does nothing where
    the system has no such advice."""
    if hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)
