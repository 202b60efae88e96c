"""What slots hold, in files: whole or not at all, and in one folder alone."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

from ..models.gguf.target import replacing
from .failures import ApiError, bad_request
from .served import Served

# A plain name: nothing that leads out of the folder, is hidden, or means something to a system.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}")
_writing = threading.Lock()  # one file at a time


def slot_file(folder: Path, name: str | None) -> Path:
    """The file of a name. Raises ApiError for what is no plain name."""
    if not name or not _NAME.fullmatch(name) or ".." in name:
        raise bad_request(
            "filename: expected a plain name of letters, digits and . _ -, got "
            f"{(name or '')[:80]!r}",
            "filename",
        )
    path = folder / name
    if path.is_symlink():
        raise bad_request(f"filename: {name!r} is a link there", "filename")
    return path


def save_slot(served: Served, seq: int, folder: Path, name: str | None) -> tuple[int, int]:
    """Write what a slot holds; its tokens and bytes. An earlier file of that name stays whole until
    the new one is complete. Raises ApiError, RequestError while the slot is busy, and OSError."""
    path = slot_file(folder, name)
    engine = served.engine

    def taken() -> tuple[int, bytes]:
        return len(engine.sequences.tokens(seq)), engine.save(seq)

    n, data = served.driver.between_steps(taken).result()
    write_whole(path, data)
    return n, len(data)


def restore_slot(served: Served, seq: int, folder: Path, name: str | None) -> tuple[int, int]:
    """Bring back what `save_slot` wrote; its tokens and bytes. Raises ApiError for a file that is
    not there, RequestError for one that is damaged or another model's, and while the slot is
    busy."""
    path = slot_file(folder, name)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ApiError(404, f"there is no saved slot {name!r}", "not_found_error") from None
    engine = served.engine
    return served.driver.between_steps(lambda: engine.restore(seq, data)).result(), len(data)


def erase_slot(served: Served, seq: int) -> int:
    """Empty a slot; how many tokens it had. Raises RequestError while it is busy."""
    return served.driver.between_steps(lambda: served.engine.erase(seq)).result()


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that, whenever the process ends, the old one or the new one is there."""
    with _writing, replacing(path, len(data)) as part, part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
