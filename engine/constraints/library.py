"""The library behind constraints: finding it, giving it room, and wording its errors."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ...graph.errors import OutOfMemory, RequestError

T = TypeVar("T")

# The library follows chains of rules and references by recursion, about 2 KiB a level; texts of
# MAX_TEXT bytes stay well inside a stack of this size, of which only what is touched takes memory.
_STACK_BYTES = 512 << 20
MAX_TEXT = 256 << 10
_LONGEST_LINE = 240
_stack_lock = threading.Lock()


def llguidance() -> Any:
    """The module. Raises RequestError where it is not installed."""
    try:
        import llguidance
    except ImportError:
        raise RequestError(
            "constraints on the generated text need the package llguidance; "
            "pip install riverrun[grammar]"
        ) from None
    return llguidance


def on_deep_stack(work: Callable[[], T]) -> T:
    """What `work` returns or raises, run on a thread whose stack has room for deep recursion."""
    with _stack_lock:
        before = threading.stack_size(_STACK_BYTES)
        try:
            pool = ThreadPoolExecutor(1)
            future = pool.submit(work)
        except RuntimeError as error:
            raise OutOfMemory(
                f"no thread with a stack of {_STACK_BYTES >> 20} MiB: {error}; raise the limit on "
                "address space"
            ) from None
        finally:
            threading.stack_size(before)
    with pool:
        return future.result()


def shorten(message: str) -> str:
    """An error message of the library in at most two lines: without excerpts of the source and
    dumps of its state, and with the middle of long lines left out."""
    lines = [line.strip() for line in re.split(r"\n<", message)[0].split("\n")]
    lines = [line for line in lines if not re.match(r"\d+ \||[\^~ ]*$", line)]
    if lines[0].startswith("panic:"):
        return "it is too large or nested too deeply"
    if len(lines) > 2:
        lines = [lines[0], lines[-1]]
    return "\n".join(map(_clip, lines))


def _clip(line: str) -> str:
    if len(line) <= _LONGEST_LINE:
        return line
    half = _LONGEST_LINE // 2
    return f"{line[:half]} ... {line[-half:]}"
