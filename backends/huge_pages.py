"""Memory in huge pages, for what is read whole in every pass."""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np

HUGE = 1 << 21  # bytes of a huge page


def huge_pages(size: int, align: int = 64) -> np.ndarray:
    """Zeroed bytes that start at a multiple of align, up to a page's size, in huge pages as far as
    they fill some and the system lets them; the rest is in pages of the usual size."""
    if size < HUGE or align > mmap.PAGESIZE or not hasattr(mmap, "MADV_HUGEPAGE"):
        raw = np.zeros(size + align, np.uint8)
        skip = -raw.ctypes.data % align
        return raw[skip : skip + size]
    # With room to start at a huge page; what lies before that is never touched.
    mapped = mmap.mmap(-1, size + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    raw = np.frombuffer(mapped, np.uint8)
    skip = -raw.ctypes.data % HUGE
    with suppress(OSError):
        mapped.madvise(mmap.MADV_HUGEPAGE, skip, size // HUGE * HUGE)
    return raw[skip : skip + size]
