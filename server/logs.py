"""The server's log: lines on standard error, as text or as JSON objects."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

_MOST_ONCE = 1000
_lock = threading.Lock()
_said: set[str] = set()
_form = "text"


def log_as(form: str) -> None:
    """Choose the form of all lines: "text" or "json"."""
    global _form
    _form = form


def log(message: str, **fields: Any) -> None:
    """A line: a message, and fields with their values."""
    if _form == "json":
        line = json.dumps({"time": round(time.time(), 3), "message": message, **fields})
    else:
        stamp = time.strftime("%H:%M:%S")
        line = " ".join([stamp, message, *(f"{key}={value}" for key, value in fields.items())])
    with _lock:
        print(line, file=sys.stderr, flush=True)


def log_once(message: str) -> None:
    """A line that is not repeated."""
    with _lock:
        if message in _said or len(_said) >= _MOST_ONCE:
            return
        _said.add(message)
    log(message)
