"""Messages in channels: OpenAI's Harmony format, of gpt-oss."""

from __future__ import annotations

import re

from ..deltas import Content, Reasoning
from ..formats import OutputFormat, register
from ..json_reading import read_value
from ..parser import OutputParser, Tools
from ..reading import SPACE, Give, Waiting

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"
MARKERS = (START, CHANNEL, CONSTRAIN, MESSAGE, END, RETURN, CALL)
# What ends the text of a message, with or without a token of its end.
_STOPS = (END, RETURN, CALL, START, CHANNEL)
_BEGINS = (START, CHANNEL, MESSAGE)
_LAST_MARKER = re.compile(r".*(<\|(?:start|message|end|return|call)\|>)", re.DOTALL)
_TO = re.compile(r"\bto=([^\s<]+)")
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_LONGEST_PIECE = 200  # characters between two markers of a header


@register
class Harmony(OutputFormat):
    """`<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...`;
    a call is a message with a recipient, `to=functions.NAME`, in the role or in the channel.

    Source: the guide "OpenAI Harmony response format" of gpt-oss, and its chat template."""

    name = "harmony"
    visible = MARKERS
    precedence = 1

    def detects(self, template: str) -> bool:
        """Templates that write channels."""
        return CHANNEL in template and MESSAGE in template

    def parser(
        self, *, tools: Tools, prompt_tail: str = "", reasoning: bool = True
    ) -> HarmonyParser:
        """See `OutputFormat.parser`."""
        return HarmonyParser(bool(tools), prompt_tail, reasoning)


class HarmonyParser(OutputParser):
    """Reads the messages of an answer. Analysis is reasoning, other channels are content; a blank
    line stands between two messages of a kind. A header that is cut is dropped."""

    def __init__(self, calls: bool, prompt_tail: str, reasoning: bool) -> None:
        """calls: messages with a recipient are calls, and not text. The others: see
        `OutputFormat.parser`."""
        super().__init__(calls)
        self._calls, self._split = calls, reasoning
        self._said = set[type]()
        last = _LAST_MARKER.match(prompt_tail)
        marker = last.group(1) if last else MESSAGE if prompt_tail else START
        # Of a header that the prompt has, what matters here; None: it is over.
        self._header: str | None = ""
        self._inside = marker == MESSAGE
        if self._inside:
            self._header = prompt_tail[: last.start(1)].rpartition(START)[2] if last else ""
        elif marker == START and last:
            self._header = prompt_tail[last.end() :].removeprefix("assistant")
        elif marker != START:
            self._header = None

    def read(self) -> Waiting[None]:
        """Reads an answer."""
        marker: str | None = None
        if self._inside:
            marker = yield from self._message(self._header or "")
        elif self._header is not None:
            marker = yield from self._header_and_message(self._header, "")
        while True:
            if marker not in _BEGINS:
                marker = yield from self.text.until(_BEGINS, self.content)
            if marker is None:
                return
            if marker == MESSAGE:
                marker = yield from self._message("")
            else:
                marker = yield from self._header_and_message("", marker)

    def _header_and_message(self, prompted: str, begun: str) -> Waiting[str | None]:
        """Reads from within a header on; what is no header is content. Returns the marker behind
        the message. prompted: what the prompt has of the header. begun: what was read of it."""
        text, read = self.text, begun
        marker = next((m for m in (CHANNEL, START) if m in prompted + begun), "")
        while True:
            piece, found = yield from self._piece(marker)
            read += piece
            if found == MESSAGE:
                text.advance(len(found))
                return (yield from self._message(prompted + read))
            if found not in (CHANNEL, CONSTRAIN):
                break
            text.advance(len(found))
            read, marker = read + found, found
        is_cut = text.ended and not text.rest and (marker or "to=" in read)
        if not is_cut:
            self.content(read)
        return None

    def _piece(self, marker: str) -> Waiting[tuple[str, str | None]]:
        """What a header has up to its next marker, and that marker, which is not read; None for
        none, or for what belongs in no header."""
        text, piece = self.text, ""
        while (char := (yield from text.peek())) and _may_be_header(marker, piece + char):
            found = (yield from text.comes(*MARKERS)) if char == "<" else None
            if found:
                return piece, found
            piece += text.advance(1)
        return piece, None

    def _message(self, header: str) -> Waiting[str | None]:
        """Reads the text of a message. Returns the marker of its end, None for the text's end."""
        to = [name for name in _TO.findall(header) if name != "assistant"]
        channel = (_CHANNEL.findall(header) or ["final"])[-1]
        if to and self._calls:
            marker = yield from self._call(to[-1].removeprefix("functions."))
        elif channel != "analysis" or to:
            marker = yield from self.text.until(_STOPS, self._teller(Content))
        elif self._split:
            marker = yield from self.text.until(_STOPS, self._teller(Reasoning))
        else:
            self.content("" if self._inside else f"{CHANNEL}{channel}{MESSAGE}")
            marker = yield from self.text.until(_STOPS, self.content)
            self.content(END if marker else "")
        self._inside = False
        if self._split and marker:
            self.part()
        return marker

    def _call(self, name: str) -> Waiting[str | None]:
        """Reads a call's arguments, as `_message` does; text behind them is content."""
        text, whole = self.text, False
        self.start_call(name)
        yield from text.skip_space()
        if (yield from text.peek()) in ("{", "["):
            whole = yield from read_value(text, self.arguments, _STOPS)
        if whole:
            self.end_call()
        marker = yield from text.until(_STOPS, self._teller(Content) if whole else self.arguments)
        if marker:
            self.end_call()
        return marker

    def _teller(self, kind: type[Content] | type[Reasoning]) -> Give:
        """Gives the text of one message, apart from that of earlier ones of its kind."""
        give = self.content if kind is Content else self.reasoning
        apart = kind in self._said

        def tell(text: str) -> None:
            nonlocal apart
            if apart:
                text = text.lstrip(SPACE)
                if not text:
                    return
                self._fresh, apart = False, False
                text = "\n\n" + text
            self._said.add(kind)
            give(text)

        return tell


def _may_be_header(marker: str, piece: str) -> bool:
    """Whether a piece of a header can begin so, behind a marker; "" for the role of a prompt."""
    words = piece.split()
    if not marker and not all(("to=" + word[3:]).startswith(word) for word in words):
        return False
    return len(words) <= 3 and len(piece) <= _LONGEST_PIECE
