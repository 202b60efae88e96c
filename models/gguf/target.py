"""Where a new file goes: it appears under its name when it is whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ...graph.errors import RequestError


def check_target(path: Path, force: bool, sources: Iterable[Path] = ()) -> None:
    """Raise RequestError unless a file may be written here: not over one that is there, unless
    `force`, nor over a folder or a device, nor over one of the sources of what is written."""
    if path.is_dir():
        raise RequestError(f"{path}: is a folder, expected a file; name a file in it")
    if not path.parent.is_dir():
        raise RequestError(f"{path}: folder {path.parent} is not there; check the path")
    if path.exists() and not force:
        raise RequestError(f"{path}: is there already; replace it with --force")
    if path.exists() and not path.is_file():
        raise RequestError(f"{path}: is not a regular file; name a new file")
    for source in sources:
        if path.exists() and source.exists() and path.samefile(source):
            raise RequestError(f"{path}: is one of the files that are read; name another file")


@contextmanager
def replacing(path: Path, needed: int) -> Iterator[Path]:
    """A path beside this one, or beside what this one links to, to write `needed` bytes to; the
    file there takes the other's place at the end, with the rights that that had, and goes away when
    something raises. Raises RequestError for a disk without room."""
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        raise RequestError(f"{path}: needs {needed} bytes, {free} are free; choose another disk")
    target = path.resolve()
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield unfinished
        if target.exists():
            shutil.copymode(target, unfinished)
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)
