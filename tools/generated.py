"""Files of a checkout that are made from the registry of ops."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ..ops import OPS


def write_or_check(path: Path, text: str, remedy: str, arguments: Sequence[str]) -> int:
    """Write the text of a generated file; with --check among the arguments only say whether the
    file has it. The exit code, 1 for a file that is out of date."""
    if "--check" not in arguments:
        path.write_text(text)
        print(f"{path}: {len(OPS)} ops")
    elif not path.exists() or path.read_text() != text:
        print(f"{path} is out of date: {remedy}", file=sys.stderr)
        return 1
    return 0
