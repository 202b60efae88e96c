"""Answers of chats: read from text as it comes, and gathered."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..models.chat.output import CallArguments, CallStart, Content, Delta, Reasoning
from .choices import finish_reason
from .prompting import Prepared
from .served import Part, Running


@dataclass
class Called:
    """A tool call: its name, its arguments as JSON text so far."""

    id: str
    name: str
    arguments: str = ""


@dataclass
class Gathered:
    """An answer so far."""

    content: str = ""
    reasoning: str = ""
    calls: list[Called] = field(default_factory=list)

    def add(self, deltas: Iterable[Delta]) -> None:
        """Go on by what is new."""
        for delta in deltas:
            if isinstance(delta, Content):
                self.content += delta.text
            elif isinstance(delta, Reasoning):
                self.reasoning += delta.text
            elif isinstance(delta, CallStart):
                self.calls.append(Called(f"call_{uuid.uuid4().hex[:24]}", delta.name))
            elif isinstance(delta, CallArguments):
                self.calls[delta.index].arguments += delta.text

    def message(self) -> dict[str, Any]:
        """OpenAI's message."""
        found: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            found["reasoning_content"] = self.reasoning
        if self.calls:
            found["content"] = self.content or None
            found["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.calls
            ]
        return found


class Reader:
    """Reads one answer: `deltas` of a part of its text is what is new, `gathered` all of it."""

    def __init__(self, prepared: Prepared, run: Running) -> None:
        self.run, self.request = run, run.request
        self.gathered = Gathered()
        self._parser = prepared.parser()

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
    found = list[Delta]()
    for delta in deltas:
        last = found[-1] if found else None
        if isinstance(delta, Content) and isinstance(last, Content):
            found[-1] = Content(last.text + delta.text)
        elif isinstance(delta, Reasoning) and isinstance(last, Reasoning):
            found[-1] = Reasoning(last.text + delta.text)
        elif (
            isinstance(delta, CallArguments)
            and isinstance(last, CallArguments)
            and last.index == delta.index
        ):
            found[-1] = CallArguments(last.index, last.text + delta.text)
        else:
            found.append(delta)
    return found
