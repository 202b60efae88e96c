"""Exceptions that strike anywhere: at each line that a call executes, one after the other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

PACKAGES = ("riverrun/engine/", "riverrun/speculative/")


class Struck(KeyboardInterrupt):
    """The exception that strikes."""


def strike(run: Callable[[], object], at: int) -> bool:
    """Run; raise Struck in front of the at-th line of the engine that is executed, counted from 0.
    Whether it came to that."""
    left = at

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if not any(part in frame.f_code.co_filename for part in PACKAGES):
            return None
        if event == "line":
            left -= 1
            if left < 0:
                raise Struck
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    except Struck:
        return True
    finally:
        sys.settrace(before)
    return False


def lines(
    prepare: Callable[[], Callable[[], object]], step: int = 1, first: int = 0
) -> Iterator[int]:
    """For every step-th line of what prepare() returns: prepare, and strike there. Yields the
    line's number after each strike, until one does not come."""
    at = first
    while strike(prepare(), at):
        yield at
        at += step
