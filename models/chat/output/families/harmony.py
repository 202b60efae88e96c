"""Messages in channels: OpenAI's Harmony format, of gpt-oss."""

from __future__ import annotations

import re
from typing import Any

from .....graph.errors import RequestError
from ..deltas import Content, Reasoning
from ..formats import OutputFormat, register
from ..json_reading import read_value
from ..parser import OutputParser, Tools
from ..reading import SPACE, Give, Waiting
from ..rules import Functions, Rules, Special, offered

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
    untagged = True
    precedence = 1

    def detects(self, template: str) -> bool:
        """Templates that write channels."""
        return CHANNEL in template and MESSAGE in template

    def parser(
        self, *, tools: Tools, prompt_tail: str = "", reasoning: bool = True
    ) -> HarmonyParser:
        """See `OutputFormat.parser`."""
        return HarmonyParser(bool(tools), prompt_tail, reasoning)

    def grammar(
        self,
        *,
        tools: Tools,
        choice: str,
        parallel: bool,
        prompt_tail: str,
        schema: dict[str, Any] | None = None,
        special: Special,
    ) -> str | None:
        """See `OutputFormat.grammar`. An answer ends behind its first call. A message that the
        prompt has begun is not held to anything, but what comes after it is."""
        rules, functions = Rules(special), offered(tools, choice)
        must = bool(functions) and choice != "auto"
        if not functions and schema is None:
            return None
        header, inside = prompted(prompt_tail)
        answers = [_call(rules, functions)] if functions else []
        if not must:
            content = rules.free(*MARKERS) if schema is None else rules.json(schema)
            kind = "" if schema is None else f"{_kind(rules)}?"
            answers.append(f'{rules.literal(CHANNEL)} "final" {kind} {_text(rules, content)}')
        again = f'{rules.literal(START)} "assistant"'
        messages = rules.rule(_messages(rules, again, plain=not must and schema is None))
        whole = rules.rule(f"{messages} ({' | '.join(answers)})")
        if inside or header is None:
            begun = rules.up_to(END) if inside else ""
            more = rules.rule(f"{begun} {again} {whole}")
            return rules.text(more if must else f"{more} | {rules.free(END)}")
        if header:
            raise RequestError(
                f"expected a prompt that ends before or behind the header of a message, got "
                f"{header!r}"
            )
        return rules.text(whole)


class HarmonyParser(OutputParser):
    """Reads the messages of an answer. Analysis is reasoning, other channels are content; a blank
    line stands between two messages of a kind. A header that is cut is dropped."""

    def __init__(self, calls: bool, prompt_tail: str, reasoning: bool) -> None:
        """calls: messages with a recipient are calls, and not text. The others: see
        `OutputFormat.parser`."""
        super().__init__(calls)
        self._calls, self._split = calls, reasoning
        self._said = set[type]()
        self._header, self._inside = prompted(prompt_tail)

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
                self._space.append("\n\n")
            self._said.add(kind)
            give(text)

        return tell


def prompted(prompt_tail: str) -> tuple[str | None, bool]:
    """What a prompt has of the header of the answer's first message, without the role, None for a
    prompt that ends between messages; and whether it ends within the message's text."""
    last = _LAST_MARKER.match(prompt_tail)
    if last is None:
        return "", bool(prompt_tail)
    if last.group(1) == MESSAGE:
        return prompt_tail[: last.start(1)].rpartition(START)[2], True
    if last.group(1) == START:
        return prompt_tail[last.end() :].removeprefix("assistant"), False
    return None, False


def _messages(rules: Rules, again: str, plain: bool) -> str:
    """Any number of messages before the last. plain: texts for the reader among them."""
    names = '("analysis" | "commentary")' if plain else '"analysis"'
    text = f"{rules.literal(MESSAGE)} {rules.up_to(END)}"
    return f"({rules.literal(CHANNEL)} {names} {text} {again})*"


def _call(rules: Rules, functions: Functions) -> str:
    """A message to a function, with the recipient in the role or in the channel."""
    calls = []
    channel = f'{rules.literal(CHANNEL)} ("commentary" | "analysis")'
    for name, schema in functions:
        to, arguments = rules.literal(f" to=functions.{name}"), rules.json(schema)
        body = rules.rule(f"{_kind(rules)}? {_text(rules, arguments)}")
        calls.append(f"({to} {channel} | {channel} {to}) {body}")
    return rules.rule(" | ".join(calls))


def _kind(rules: Rules) -> str:
    """The type of a message's text."""
    return f'(" "? {rules.literal(CONSTRAIN)} "json" | " json")'


def _text(rules: Rules, content: str) -> str:
    return f"{rules.literal(MESSAGE)} {content}"


def _may_be_header(marker: str, piece: str) -> bool:
    """Whether a piece of a header can begin so, behind a marker; "" for the role of a prompt."""
    words = piece.split()
    if not marker and not all(("to=" + word[3:]).startswith(word) for word in words):
        return False
    return len(words) <= 3 and len(piece) <= _LONGEST_PIECE
