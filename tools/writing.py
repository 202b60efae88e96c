"""What commands that write model files share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from .messages import note
from .progress import Progress, progress_bar

Out: TypeAlias = Annotated[Path, typer.Argument(metavar="OUT", help="GGUF file to write.")]
Force: TypeAlias = Annotated[bool, typer.Option("--force", help="Replace the file that is there.")]


@contextmanager
def writing(out: Path) -> Iterator[Progress | None]:
    """What to call with bytes done and their total while a file is written. Ctrl-C is told in a
    line, with what became of the file."""
    before = _state(out)
    try:
        with progress_bar("writing") as progress:
            yield progress
    except KeyboardInterrupt:
        left = "is as it was" if before else "is not written"
        note(f"interrupted: {out} {'is written' if _state(out) != before else left}")
        raise


def _state(path: Path) -> tuple[int, int] | None:
    """What changes where a file is replaced; None for no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def tell_size(out: Path) -> None:
    """A line of what was written."""
    note(f"{out}: {out.stat().st_size:,} bytes")
