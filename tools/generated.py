"""Files of a checkout that are made from what the code declares."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


def write_or_check(path: Path, text: str, holds: str, remedy: str, arguments: Sequence[str]) -> int:
    """Write the text of a generated file and say what it holds; with --check among the arguments
    only say whether the file has it. The exit code, 1 for a file that is out of date."""
    if "--check" not in arguments:
        path.write_text(text)
        print(f"{path}: {holds}")
    elif not path.exists() or path.read_text() != text:
        print(f"{path} is out of date: {remedy}", file=sys.stderr)
        return 1
    return 0
