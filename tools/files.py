"""Files and standard input that a command line names: read, written, and what can be wrong."""

from __future__ import annotations

import sys
from pathlib import Path

from ..graph.errors import RequestError
from .misuse import misuse

STANDARD_INPUT = "-"  # how options and arguments name it


def read_text(path: Path, label: str) -> str:
    """The text of a file, UTF-8. Raises RequestError where it cannot be read, typer.BadParameter
    naming the option `label` where it is no text."""
    try:
        return _decode(path.read_bytes(), str(path), label)
    except OSError as error:
        raise cannot("read", path, error) from None


def write_text(path: Path, text: str) -> None:
    """Write a file, UTF-8; it appears, or replaces the one that is there, when it is whole.

    Raises RequestError where it cannot be written, or would replace a model file."""
    from ..models.gguf.target import replacing

    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        if path.exists() and _is_model(path):
            raise RequestError(f"{path}: is a GGUF file, which a text would replace; name another")
        with replacing(path, len(text.encode())) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
    except OSError as error:
        raise cannot("written", path, error) from None


def piped() -> bool:
    """Whether standard input is something other than a terminal."""
    return sys.stdin is not None and not sys.stdin.isatty()


def read_input(label: str) -> str:
    """What is left of standard input, UTF-8, "" where there is none to read. Raises
    typer.BadParameter where it is no text."""
    try:
        raw = sys.stdin.buffer.read() if sys.stdin is not None else b""
    except (OSError, ValueError):
        return ""
    return _decode(raw, "standard input", label)


def cannot(done: str, path: Path, error: OSError) -> RequestError:
    """The error for a file that cannot be `done` ("read", "written"): which, why, the remedy."""
    if isinstance(error, FileNotFoundError):
        there = done == "written"
        missing = f"folder {path.parent} is not there" if there else "no such file"
        return RequestError(f"{path}: {missing}; check the path")
    if isinstance(error, IsADirectoryError):
        return RequestError(f"{path}: is a folder, expected a file; name a file in it")
    return RequestError(f"{path}: cannot be {done}: {error.strerror or error}")


def _is_model(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def _decode(raw: bytes, name: str, label: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise misuse(
            f"{name}: byte {error.start} is not UTF-8; convert the text to UTF-8 first", label
        ) from None
