"""The library behind constraints: finding it, giving it room, and wording its errors."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import Future, TimeoutError
from typing import Any, TypeVar

from ...graph.errors import OutOfMemory, RequestError

T = TypeVar("T")

# The library follows chains of rules and references by recursion, so that a long chain overflows an
# ordinary stack and ends the process. Of this one only what is touched takes memory.
_STACK_BYTES = 512 << 20
# Some short texts take the library minutes.
_SECONDS = 20.0
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


def with_room(work: Callable[[], T]) -> T:
    """What `work` returns or raises, run on a thread whose stack has room for deep recursion.

    Raises RequestError if it takes longer than 20 s or panics; it then goes on, unheeded, to its
    end."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=run, name="compile constraint", daemon=True)
    with _stack_lock:
        before = threading.stack_size(_STACK_BYTES)
        try:
            thread.start()
        except RuntimeError as error:
            raise OutOfMemory(
                f"no thread with a stack of {_STACK_BYTES >> 20} MiB: {error}; raise the limit on "
                "address space"
            ) from None
        finally:
            threading.stack_size(before)
    try:
        return future.result(_SECONDS)
    except TimeoutError:
        raise RequestError(f"takes longer than {_SECONDS:g} s to compile; simplify it") from None
    except BaseException as error:
        # A panic of the library is a BaseException of a class that the library does not export.
        if type(error).__name__ != "PanicException":
            raise
        raise RequestError(shorten(f"panic: {error}")) from None


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
