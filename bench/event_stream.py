"""Server-sent events, as the streams of OpenAI-compatible servers have them."""

from __future__ import annotations

import re

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class EventStream:
    """Takes a stream's bytes in pieces cut anywhere and gives the data of its events. Source: HTML
    standard, section 9.2.6; names, ids and comments are passed over."""

    def __init__(self) -> None:
        self._line: list[bytes] = []  # pieces of a line that has not ended
        self._data: list[str] = []  # lines of an event that has not ended
        self._after_return = False  # a line feed now belongs to the line that ended
        self._first = True

    def feed(self, piece: bytes) -> list[str]:
        """The data of the events that end in this piece, in order."""
        if self._after_return and piece:
            piece = piece.removeprefix(b"\n")
            self._after_return = False
        if not piece:
            return []
        self._after_return = piece.endswith(b"\r")
        *ended, rest = _LINE_END.split(piece)
        events: list[str] = []
        for line in ended:
            self._take_line(b"".join([*self._line, line]), events)
            self._line = []
        self._line.append(rest)
        return events

    def _take_line(self, line: bytes, events: list[str]) -> None:
        if self._first:
            line, self._first = line.removeprefix(_BOM), False
        if not line:
            if self._data:
                events.append("\n".join(self._data))
                self._data = []
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" ").decode("utf-8", "replace"))
