"""Answers of chats: read from text as it comes, and gathered."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..models.chat.output import CallArguments, CallEnd, CallStart, Content, Delta, Place, Reasoning
from .choices import finish_reason
from .failures import ApiError
from .served import Part, Running


@dataclass
class Called:
    """A tool call: its name, its arguments as JSON text so far; ended: they are whole."""

    id: str
    name: str
    arguments: str = ""
    ended: bool = False

    def values(self) -> dict[str, Any]:
        """The arguments by name. Raises ApiError where they are no JSON object."""
        try:
            found = json.loads(self.arguments or "{}")
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ApiError(
                500,
                f"the model called {self.name!r} with arguments that are no JSON object: "
                f"{self.arguments[:200]!r}",
                "server_error",
            )
        return found


@dataclass
class Gathered:
    """An answer so far."""

    contents: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[Called] = field(default_factory=list)

    @property
    def content(self) -> str:
        """The text for the reader."""
        return "".join(self.contents)

    @property
    def reasoning(self) -> str:
        """The reasoning."""
        return "".join(self.thoughts)

    def add(self, deltas: Iterable[Delta]) -> None:
        """Go on by what is new."""
        for delta in deltas:
            if isinstance(delta, Content):
                self.contents.append(delta.text)
            elif isinstance(delta, Reasoning):
                self.thoughts.append(delta.text)
            elif isinstance(delta, CallStart):
                id = delta.id or f"call_{uuid.uuid4().hex[:24]}"
                self.calls.append(Called(id, delta.name))
            elif isinstance(delta, CallArguments):
                self.calls[delta.index].arguments += delta.text
            elif isinstance(delta, CallEnd):
                self.calls[delta.index].ended = True

    def message(self) -> dict[str, Any]:
        """OpenAI's message."""
        content, reasoning = self.content, self.reasoning
        found: dict[str, Any] = {"role": "assistant", "content": content}
        if reasoning:
            found["reasoning_content"] = reasoning
        if self.calls:
            found["content"] = content or None
            found["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.calls
            ]
        return found


class Parser(Protocol):
    """Finds the parts of an answer in its text."""

    def feed(self, text: str) -> list[Delta]:
        """What more of the text brings."""
        ...

    def finish(self) -> list[Delta]:
        """What was withheld when the text ended."""
        ...


class Verbatim:
    """A parser of text that is taken as it is: all of it is content."""

    def __init__(self) -> None:
        self._end = 0

    def feed(self, text: str) -> list[Delta]:
        """That text."""
        first, self._end = self._end, self._end + len(text)
        return [Content(text, (first, self._end))]

    def finish(self) -> list[Delta]:
        """Nothing."""
        return []


class Reader:
    """Reads one answer: `deltas` of a part of its text is what is new, `gathered` all of it."""

    def __init__(self, parser: Parser, run: Running) -> None:
        self.run, self.request = run, run.request
        self.gathered = Gathered()
        self._parser = parser

    def deltas(self, part: Part) -> list[Delta]:
        """What a part brings; the last one everything that was withheld."""
        found = self._parser.feed(part.text) if part.text else []
        if part.finished:
            found = [*found, *self._parser.finish()]
        found = merged_deltas(found)
        self.gathered.add(found)
        return found

    @property
    def finish_reason(self) -> str:
        """OpenAI's word for why it ended."""
        reason = finish_reason(self.request)
        return "tool_calls" if reason == "stop" and self.gathered.calls else reason


def merged_deltas(deltas: Sequence[Delta]) -> list[Delta]:
    """The same in fewer: neighbours of a kind are joined."""
    if len(deltas) < 2:
        return list(deltas)
    found = list[Delta]()
    for delta in deltas:
        last = found[-1] if found else None
        if isinstance(delta, Content) and isinstance(last, Content):
            found[-1] = Content(last.text + delta.text, _joined(last.place, delta.place))
        elif isinstance(delta, Reasoning) and isinstance(last, Reasoning):
            found[-1] = Reasoning(last.text + delta.text, _joined(last.place, delta.place))
        elif (
            isinstance(delta, CallArguments)
            and isinstance(last, CallArguments)
            and last.index == delta.index
        ):
            found[-1] = CallArguments(last.index, last.text + delta.text)
        else:
            found.append(delta)
    return found


def _joined(first: Place | None, second: Place | None) -> Place | None:
    return None if first is None or second is None else (first[0], second[1])
