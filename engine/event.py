"""What a step of an engine tells."""

from __future__ import annotations

from typing import NamedTuple

from .request import Request


class Event(NamedTuple):
    """What a step did for a request: new pieces of text, and whether it ended."""

    request: Request
    pieces: list[str]
    finished: bool
