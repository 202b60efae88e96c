"""Bars on standard error for what takes a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from .messages import printable, watched

Progress: TypeAlias = Callable[[int, int], None]


@contextmanager
def progress_bar(label: str) -> Iterator[Progress | None]:
    """What to call with bytes done and their total: a bar on standard error, None where nobody
    watches."""
    if not watched():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    text = TextColumn("{task.description}", markup=False)
    columns = (text, BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(printable(label), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
