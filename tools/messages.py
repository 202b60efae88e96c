"""What people read on standard error: short, printable, and never in place of the output."""

from __future__ import annotations

import os
import sys

MAX_LINES = 3
_MAX_COLUMNS = 600


def note(text: str) -> None:
    """Print on standard error; nothing where it is closed."""
    if sys.stderr is None:
        return
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        sys.stderr = None


def watched() -> bool:
    """Whether somebody sees standard error as it comes."""
    return sys.stderr is not None and sys.stderr.isatty()


def note_progress(text: str) -> None:
    """Print on standard error where somebody sees it as it comes."""
    if watched():
        note(text)


def complain(text: str, command: str = "riverrun", hint: str = "") -> None:
    """Print an error in at most three lines. File names cannot smuggle in control characters."""
    lines = [line for line in text.splitlines() if line.strip()] or ["unknown error"]
    lines[0] = f"{command}: error: {lines[0]}"
    lines = lines[: MAX_LINES - bool(hint)] + ([hint] if hint else [])
    note("\n".join(_shorten(printable(line)) for line in lines))


def silence() -> None:
    """Send what is still buffered for standard output nowhere, where it would fail at exit."""
    try:
        target = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, target)
    os.close(nowhere)


def printable(line: str) -> str:
    """A line without control characters: each is spelled out."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


def _shorten(line: str) -> str:
    """The middle goes: a message starts with the file and ends with the remedy."""
    if len(line) <= _MAX_COLUMNS:
        return line
    half = _MAX_COLUMNS // 2
    return f"{line[:half]} ... {line[-half:]}"
