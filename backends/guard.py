"""Memory that tells of writes outside its buffers, for checking kernels."""

from __future__ import annotations

import numpy as np

# Read as f32, f16 or bf16 it is NaN, and as an integer a value that no test expects.
PATTERN = np.array([0xA5, 0xFF], np.uint8)
MARGIN = 256
UNWRITTEN = 0xFF  # every byte of memory that a run should fill: NaN as a float


def pattern(size: int, start: int = 0) -> np.ndarray:
    """Bytes start .. start + size of the pattern."""
    return np.tile(PATTERN, size // 2 + 2)[start % 2 :][:size]


class Guards:
    """Makes buffers with guard bytes on both sides, and looks at these later.

    `allocate` is what `base.allocating` takes."""

    def __init__(self) -> None:
        self._buffers: list[tuple[np.ndarray, int, int]] = []  # memory with margins, start, size
        self._names: dict[int, str] = {}

    def allocate(self, size: int, align: int = 64) -> np.ndarray:
        """Zeroed bytes that start at a multiple of align."""
        whole = pattern(size + align + 2 * MARGIN)
        start = MARGIN + -(whole.ctypes.data + MARGIN) % align
        whole[start : start + size] = 0
        self._buffers.append((whole, start, size))
        return np.ndarray((size,), np.uint8, whole.data, start)

    def copy(self, raw: np.ndarray, name: str) -> np.ndarray:
        """A named buffer with these bytes."""
        made = self.allocate(raw.nbytes)
        made[...] = raw
        self.name(made, name)
        return made

    def name(self, array: np.ndarray, name: str) -> None:
        """Say what a buffer is called in `breach`."""
        self._names[array.ctypes.data] = name

    def breach(self) -> str:
        """The first buffer with changed guard bytes, and where; "" when all are as they were."""
        for whole, start, size in self._buffers:
            before, after = whole[:start], whole[start + size :]
            changed = np.r_[
                np.flatnonzero(before != pattern(start)) - start,
                np.flatnonzero(after != pattern(after.size, start + size)) + size,
            ]
            if changed.size:
                name = self._names.get(whole.ctypes.data + start, "packed weights or a buffer")
                at = int(changed[0])
                place = f"{-at} before" if at < 0 else f"{at - size + 1} past the end of"
                return f"wrote byte {place} {name}, which has {size} bytes"
        return ""
