"""Answers of chat models as their parsers read them, fed in pieces of several sizes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from riverrun.models.chat.output import (
    CallArguments,
    CallEnd,
    CallStart,
    Content,
    Delta,
    OutputFormat,
    OutputParser,
    Reasoning,
    formats,
)


def tool(name: str, required: Sequence[str] = (), **properties: Any) -> dict[str, Any]:
    """A tool in OpenAI's form."""
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    parameters["additionalProperties"] = False
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TEXT, INTEGER = {"type": "string"}, {"type": "integer"}
TOOLS = [
    tool("get_weather", ["city"], city=TEXT, days=INTEGER),
    tool("now"),
    tool(
        "store",
        ["text"],
        text=TEXT,
        flag={"type": "boolean"},
        size={"type": "number"},
        tags={"type": "array", "items": {"type": "string"}},
        inner={"type": "object"},
        none={"type": "null"},
    ),
]


@dataclass
class Read:
    """An answer as read. calls: names and texts of arguments; ended: indices of whole ones."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)

    @property
    def arguments(self) -> list[tuple[str, Any]]:
        """The calls with their arguments as values."""
        return [(name, json.loads(text)) for name, text in self.calls]

    @property
    def whole(self) -> str:
        """All characters, in no order that means anything."""
        return self.content + self.reasoning + "".join(n + a for n, a in self.calls)


def joined(deltas: Iterable[Delta]) -> Read:
    """What deltas amount to; they are checked to be in order, and none of them empty."""
    read = Read()
    for delta in deltas:
        if isinstance(delta, CallStart):
            assert delta.index == len(read.calls)
            read.calls.append((delta.name, ""))
        elif isinstance(delta, CallArguments):
            assert (
                delta.text and delta.index == len(read.calls) - 1 and delta.index not in read.ended
            )
            name, text = read.calls[delta.index]
            read.calls[delta.index] = (name, text + delta.text)
        elif isinstance(delta, CallEnd):
            assert delta.index == len(read.calls) - 1
            read.ended.append(delta.index)
        elif isinstance(delta, Content):
            assert delta.text
            read.content += delta.text
        else:
            assert isinstance(delta, Reasoning) and delta.text
            read.reasoning += delta.text
    return read


def format_of(name: str) -> OutputFormat:
    """A family by its name."""
    return formats()[name]()


def parser_of(name: str, **options: Any) -> OutputParser:
    """A family's parser of an answer."""
    return format_of(name).parser(**{"tools": TOOLS, **options})


def fed(parser: OutputParser, pieces: Iterable[str]) -> Read:
    """An answer read in these pieces."""
    deltas, text = list[Delta](), ""
    for piece in pieces:
        deltas += parser.feed(piece)
        text += piece
    deltas += parser.finish()
    check_places(deltas, text)
    return joined(deltas)


def check_places(deltas: Iterable[Delta], text: str) -> None:
    """Reasoning and text say where in the answer they stand. A blank line that a parser puts
    between two of them is nowhere, and a marker that means nothing there may be left out."""
    behind = 0
    for delta in deltas:
        if isinstance(delta, Content | Reasoning):
            assert delta.place is not None
            first, end = delta.place
            assert behind <= first <= end
            shown, source = delta.text, text[first:end]
            if shown not in (source, "\n\n" + source):
                rest = iter(source)
                assert shown[0] == source[0] and shown[-1] == source[-1]
                assert all(char in rest for char in shown)
            behind = end


def read(name: str, text: str, **options: Any) -> Read:
    """An answer read whole, character by character, and in two pieces cut at every place, which
    has to be the same."""
    found = fed(parser_of(name, **options), [text])
    assert fed(parser_of(name, **options), text) == found
    for cut in range(1, len(text)):
        assert fed(parser_of(name, **options), [text[:cut], text[cut:]]) == found, text[:cut]
    return found
