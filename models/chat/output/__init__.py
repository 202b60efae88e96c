"""What a chat model writes, read as it comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class CallStart:
    index: int
    name: str


@dataclass(frozen=True)
class CallArguments:
    index: int
    text: str


@dataclass(frozen=True)
class CallEnd:
    index: int


@dataclass(frozen=True)
class Reasoning:
    text: str


@dataclass(frozen=True)
class Content:
    text: str


Delta = CallStart | CallArguments | CallEnd | Reasoning | Content


class OutputParser:
    n_calls = 0

    def feed(self, text: str) -> list[Delta]:
        return [Content(text)]

    def finish(self) -> list[Delta]:
        return []


class OutputFormat:
    name = "plain"
    visible: tuple[str, ...] = ()

    def parser(self, *, tools: Any, prompt_tail: str = "", reasoning: bool = True) -> OutputParser:
        return OutputParser()

    def grammar(self, **asked: Any) -> str | None:
        return None


def format_for(template: str, control_texts: Sequence[str]) -> OutputFormat:
    return OutputFormat()
