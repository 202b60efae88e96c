"""What commands that write model files share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from .messages import note

Out: TypeAlias = Annotated[Path, typer.Argument(metavar="OUT", help="GGUF file to write.")]
Force: TypeAlias = Annotated[bool, typer.Option("--force", help="Replace the file that is there.")]


def tell_size(out: Path) -> None:
    """A line of what was written."""
    note(f"{out}: {out.stat().st_size:,} bytes")
