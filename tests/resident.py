"""How much of a mapped file is in this process's memory, and how much that is no file's."""

from __future__ import annotations

from pathlib import Path

import pytest

SMAPS, ROLLUP = Path("/proc/self/smaps"), Path("/proc/self/smaps_rollup")
NEEDS_SMAPS = pytest.mark.skipif(not SMAPS.exists(), reason="no /proc that tells of mappings")


def resident(path: Path) -> int:
    """Bytes of a file that this process has in memory, through all its mappings."""
    found, of_file = 0, False
    for line in SMAPS.read_text().splitlines():
        first, *words = line.split(maxsplit=5)
        if not first.endswith(":"):
            of_file = bool(words) and words[-1] == str(path)
        elif of_file and first == "Rss:":
            found += 1024 * int(words[0])
    return found


def own() -> int:
    """Bytes of this process that are in memory and no file's."""
    (line,) = [line for line in ROLLUP.read_text().splitlines() if line.startswith("Anonymous:")]
    return 1024 * int(line.split()[1])
