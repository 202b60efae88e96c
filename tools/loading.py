"""Loading a model for a subcommand, with a progress bar for people who watch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..engine import Model
    from ..engine.offload import Offload


def load_model(
    path: Path | None,
    device: str,
    threads: int | None,
    draft_head: int = 0,
    offload: Offload | None = None,
) -> Model:
    """The model at path, or the bundled demo. A bar on standard error while weights are laid out,
    if that is a terminal. Raises what `riverrun.load` raises."""
    import riverrun

    source = path or riverrun.DEMO_MODEL
    if sys.stderr is None or not sys.stderr.isatty():
        return riverrun.load(source, device, threads, draft_head=draft_head, offload=offload)

    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("loading {task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(source.name.replace("[", r"\["), total=None)
        return riverrun.load(
            source,
            device,
            threads,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
            draft_head=draft_head,
            offload=offload,
        )
