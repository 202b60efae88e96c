"""What a user says: messages typed at a terminal, or lines of a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress

from ..graph.errors import RequestError
from .messages import note

PROMPT, MORE = "> ", ". "
QUOTES = '"""'


def piped_messages() -> Iterator[str]:
    """The lines of standard input as they come, without empty ones. Raises RequestError for one
    that is not UTF-8."""
    source = sys.stdin.buffer
    for number, raw in enumerate(iter(source.readline, b""), 1):
        try:
            line = raw.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise RequestError(
                f"standard input, line {number}: byte {error.start} is not UTF-8; convert the text "
                "to UTF-8 first"
            ) from None
        if line.strip():
            yield line


class Typed:
    """The messages that are typed, to the end of the input.

    A line that ends with a backslash goes on in the next one, and what stands between two \"\"\"
    is one message. Ctrl-C drops what is typed; a second one in a row raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self._interrupted = False
        if sys.stdout.isatty():
            # Gives `input` its editing of lines, and earlier ones by the arrow keys.
            with suppress(ImportError):
                import readline  # noqa: F401

    def __iter__(self) -> Iterator[str]:
        while True:
            try:
                message = self._message()
            except EOFError:
                note("")
                return
            except KeyboardInterrupt:
                if self._interrupted:
                    raise
                self._interrupted = True
                note("\n(Ctrl-C again ends, and so does Ctrl-D)")
                continue
            self._interrupted = False
            if message.strip():
                yield message

    def _message(self) -> str:
        line = self._line(PROMPT)
        if line.lstrip().startswith(QUOTES):
            return self._quoted(line.lstrip().removeprefix(QUOTES))
        parts = []
        while line.endswith("\\"):
            parts.append(line[:-1])
            line = self._line(MORE)
        return "\n".join([*parts, line])

    def _quoted(self, line: str) -> str:
        parts = []
        while not line.rstrip().endswith(QUOTES):
            parts.append(line)
            line = self._line(MORE)
        return "\n".join([*parts, line.rstrip().removesuffix(QUOTES)]).strip("\n")

    def _line(self, prompt: str) -> str:
        """A line without its end. Raises EOFError at the end of the input, if there is any."""
        if sys.stdin is None:
            raise EOFError
        if sys.stdout.isatty():
            return input(prompt)
        # `input` would print its prompt among the answers.
        print(prompt, end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")
