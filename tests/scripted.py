"""A format of answers whose parser says what a test has written down, whatever the model writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from riverrun.models.chat.output import CallArguments, CallEnd, CallStart, Content, Reasoning
from riverrun.server import prompting

# Reasoning, text, and two calls, one of them without arguments.
ANSWER = (
    Reasoning("Let me "),
    Reasoning("see."),
    Content("I will "),
    Content("look."),
    CallStart(0, "weather"),
    CallArguments(0, '{"city": '),
    CallArguments(0, '"Oslo"}'),
    CallEnd(0),
    CallStart(1, "now"),
    CallArguments(1, "{}"),
    CallEnd(1),
)
CUT = ANSWER[:6]  # a call that the end of the text leaves open
WRONG = (CallStart(0, "weather"), CallArguments(0, "[1]"), CallEnd(0))
WEATHER = {
    "name": "weather",
    "description": "The weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
NOW = {"name": "now", "parameters": {"type": "object", "properties": {}}}


class Script:
    """One thing with each part of a text, the others in the end."""

    def __init__(self, deltas: Sequence[Any]) -> None:
        self._left, self._end = list(deltas), 0

    def feed(self, text: str) -> list[Any]:
        found, self._left = self._left[:1], self._left[1:]
        place = (self._end, self._end + len(text))
        self._end = place[1]
        return [replace(d, place=place) if hasattr(d, "place") else d for d in found]

    def finish(self) -> list[Any]:
        found, self._left = self._left, []
        return found


class Scripted:
    """The format. asked: what was asked of its grammar, and what its parsers were made with."""

    name, visible = "scripted", ()

    def __init__(self, deltas: Sequence[Any]) -> None:
        self.deltas = deltas
        self.asked: dict[str, Any] = {}

    def parser(self, **asked: Any) -> Script:
        self.asked |= asked
        return Script(self.deltas)

    def grammar(self, **asked: Any) -> None:
        self.asked |= asked


def script(monkeypatch: pytest.MonkeyPatch, deltas: Sequence[Any] = ANSWER) -> Scripted:
    """Servers of this process read every answer so."""
    found = Scripted(deltas)
    monkeypatch.setattr(prompting, "format_for", lambda *given: found)
    return found


def rendered(monkeypatch: pytest.MonkeyPatch) -> list[prompting.Chat]:
    """The chats that servers of this process prepare from now on."""
    found, prepare = list[prompting.Chat](), prompting.prepare

    def noting(served: Any, chat: prompting.Chat) -> Any:
        found.append(chat)
        return prepare(served, chat)

    for name in ("ollama_chat", "ollama_generate", "anthropic", "openai_chat", "openai_responses"):
        monkeypatch.setattr(f"riverrun.server.endpoints.{name}.prepare", noting)
    return found
