"""What commands that write model files share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, TypeAlias

import typer

Force: TypeAlias = Annotated[bool, typer.Option("--force", help="Replace the file that is there.")]
Progress: TypeAlias = Callable[[int, int], None]


@contextmanager
def progress_bar() -> Iterator[Progress | None]:
    """What to call with bytes written and their total: a bar on standard error, None where that is
    no terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("writing"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
