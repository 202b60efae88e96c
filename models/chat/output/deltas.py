"""What is new in an answer: pieces of reasoning, of text, and of tool calls."""

from __future__ import annotations

from dataclasses import dataclass, field

Place = tuple[int, int]


@dataclass(frozen=True)
class CallStart:
    """A tool call begins. index: 0, 1, ... in an answer. name: of the function, as written. id: by
    which the chat goes on to name the call, empty for any."""

    index: int
    name: str
    id: str = field(default="", compare=False)


@dataclass(frozen=True)
class CallArguments:
    """A further fragment of a call's arguments; all of a call joined are the JSON text of an
    object where the model wrote one, and else what it wrote."""

    index: int
    text: str


@dataclass(frozen=True)
class CallEnd:
    """A tool call is whole. One that was cut has no end."""

    index: int


@dataclass(frozen=True)
class Reasoning:
    """A piece of the reasoning, without its tags. place: as of `Content`."""

    text: str
    place: Place | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Content:
    """A piece of the text that is for the reader. place: of the first of its characters in the
    answer and of the one behind its last; None where that is not known."""

    text: str
    place: Place | None = field(default=None, compare=False)


Delta = CallStart | CallArguments | CallEnd | Reasoning | Content
