"""What the environment asks to be shown of a run, on standard error: docs/debugging.md."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

MOST = 4


def level() -> int:
    """The level that RIVERRUN_DEBUG asks for; 0 when it names none. Above 4 is 4."""
    text = os.environ.get("RIVERRUN_DEBUG", "").strip()
    return min(int(text), MOST) if text.isdecimal() else 0


def note(lines: Iterable[str]) -> None:
    """Lines to standard error, marked so that checksums can be told apart."""
    sys.stderr.write("".join(f"riverrun: {line}\n" for line in lines))
