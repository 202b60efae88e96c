"""From the items of OpenAI's Responses API to chats, and from answers to items and events."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..models.chat.output import CallArguments, CallStart, Content, Delta, Reasoning
from .answers import Gathered
from .failures import bad_request
from .prompting import (
    Chat,
    join_parts,
    read_arguments,
    read_choice,
    read_format,
    read_tools,
    thinking_kwargs,
)
from .wire.responses import INCLUDABLE, LOGPROBS, ResponsesBody

_SYSTEM = ("system", "developer")
# How items with text begin: their ids, and their fields besides the content.
_FIRST: dict[str, tuple[str, dict[str, Any]]] = {
    "message": ("msg", {"role": "assistant"}),
    "reasoning": ("rs", {"summary": []}),
}
_ROLES = ("user", "assistant", *_SYSTEM)


def chat_of(body: ResponsesBody) -> Chat:
    """What a body asks for. Raises ApiError, naming items and tools that are not supported."""
    tools = read_tools([_tool(tool, i) for i, tool in enumerate(body.tools or ())])
    return Chat(
        _messages(body),
        tools,
        read_choice(body.tool_choice, tools),
        body.parallel_tool_calls is not False,
        read_format(body.text.format if body.text else None),
        template_kwargs=thinking_kwargs(None, body.reasoning.effort if body.reasoning else None),
    )


def logprobs_of(body: ResponsesBody) -> int | None:
    """How many of the likeliest tokens are wanted beside each, None for no log-probabilities.
    Raises ApiError."""
    included = body.include or ()
    for name in included:
        if name not in (LOGPROBS, *INCLUDABLE):
            known = ", ".join((LOGPROBS, *INCLUDABLE))
            raise bad_request(f"include: expected some of {known}, got {name!r}", "include")
    if LOGPROBS in included:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise bad_request(f"top_logprobs: needs {LOGPROBS!r} in include", "top_logprobs")
    return None


def _tool(tool: Mapping[str, Any], index: int) -> dict[str, Any]:
    """A tool in the form of chats."""
    if tool.get("type") != "function":
        raise bad_request(
            f"tools[{index}]: {tool.get('type')!r} is not supported; give tools of type function",
            "tools",
        )
    kept = ("name", "description", "parameters")
    function = {name: tool[name] for name in kept if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _messages(body: ResponsesBody) -> list[dict[str, Any]]:
    """The messages of a chat; what comes before the first turn is one of them."""
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    found = _Turns()
    for i, item in enumerate(items):
        found.add(item, f"input[{i}]")
    first = [body.instructions] if body.instructions else []
    rest = found.messages
    while rest and rest[0]["role"] in _SYSTEM:
        first.append(rest.pop(0)["content"])
    messages = [{"role": "system", "content": "\n\n".join(first)}, *rest] if first else rest
    if not messages:
        raise bad_request("input: expected a text or items, got none", "input")
    return messages


class _Turns:
    """Items put together: reasoning, text and calls that follow each other are one answer."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._names: dict[str, str] = {}  # of functions, by the ids of their calls

    def add(self, item: Mapping[str, Any], where: str) -> None:
        """Go on by an item. Raises ApiError for one that is not supported."""
        kind = item.get("type") or ("message" if "role" in item else None)
        if kind == "message":
            self._add_message(item, where)
        elif kind == "function_call":
            self._add_call(item, where)
        elif kind == "function_call_output":
            self._add_output(item, where)
        elif kind == "reasoning":
            text = _parts(item.get("content") or item.get("summary") or [], where)
            if text:
                self._answer("reasoning_content")["reasoning_content"] = text
        else:
            raise bad_request(
                f"{where}: items of type {kind!r} are not supported here; message, function_call, "
                "function_call_output and reasoning are",
                "input",
            )

    def _add_message(self, item: Mapping[str, Any], where: str) -> None:
        role, content = item.get("role"), item.get("content")
        if role not in _ROLES:
            raise bad_request(f"{where}.role: expected {', '.join(_ROLES)}, got {role!r}", "input")
        text = content if isinstance(content, str) else _parts(content, f"{where}.content")
        if role == "assistant":
            self._answer("content")["content"] = text
        else:
            self.messages.append({"role": role, "content": text})

    def _add_call(self, item: Mapping[str, Any], where: str) -> None:
        name, called = _named(item, "name", where), _named(item, "call_id", where)
        self._names[called] = name
        arguments = read_arguments(item.get("arguments"), f"{where}.arguments")
        function = {"name": name, "arguments": arguments}
        call = {"id": called, "type": "function", "function": function}
        self._answer("").setdefault("tool_calls", []).append(call)

    def _add_output(self, item: Mapping[str, Any], where: str) -> None:
        called, output = _named(item, "call_id", where), item.get("output") or ""
        text = output if isinstance(output, str) else _parts(output, f"{where}.output")
        message = {"role": "tool", "tool_call_id": called, "content": text}
        if called in self._names:
            message["name"] = self._names[called]
        self.messages.append(message)

    def _answer(self, part: str) -> dict[str, Any]:
        """The answer that an item belongs to: the last message, unless it has that part, or calls
        that the part would stand behind."""
        last = self.messages[-1] if self.messages else None
        if (
            last is None
            or last["role"] != "assistant"
            or (part and (last.get(part) or last.get("tool_calls")))
        ):
            last = {"role": "assistant", "content": ""}
            self.messages.append(last)
        return last


def _named(item: Mapping[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not value:
        raise bad_request(f"{where}: {item['type']} needs {name}, a text, got {value!r}", "input")
    return value


def _parts(parts: Any, where: str) -> str:
    """The text of parts. Raises ApiError for those that are none."""
    if not isinstance(parts, list):
        raise bad_request(f"{where}: expected a text or a list of parts, got {parts!r}", "input")
    return join_parts([_as_text(part) for part in parts], where)


def _as_text(part: Any) -> Any:
    """A part as text, where another of its fields holds that."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in ("reasoning_text", "summary_text"):
        return {"type": "text", "text": part.get("text")}
    return {"type": "text", "text": part.get("refusal")} if kind == "refusal" else part


class ItemWriter:
    """Tells what is new of an answer in events without their numbers, and keeps the items that they
    make."""

    def __init__(self, gathered: Gathered) -> None:
        self.items: list[dict[str, Any]] = []
        self._gathered, self._kind = gathered, ""
        self._texts: list[str] = []  # of the item that is open
        self._logprobs: list[dict[str, Any]] = []

    def events(
        self, delta: Delta, logprobs: Sequence[dict[str, Any]] = ()
    ) -> Iterator[dict[str, Any]]:
        """The events of what is new; it must be gathered already. logprobs: of its tokens, where
        they are asked for and it is text."""
        if isinstance(delta, Content):
            yield from self._into_text("message", "output_text", delta.text, logprobs)
        elif isinstance(delta, Reasoning):
            yield from self._into_text("reasoning", "reasoning_text", delta.text)
        elif isinstance(delta, CallStart):
            called = self._gathered.calls[delta.index]
            fields = {"call_id": called.id, "name": called.name, "arguments": ""}
            yield from self._open("function_call", "fc", fields)
        elif isinstance(delta, CallArguments):
            self._texts.append(delta.text)
            yield self._event("response.function_call_arguments.delta", delta=delta.text)
        else:
            yield from self.close()

    def close(self, status: str = "completed") -> Iterator[dict[str, Any]]:
        """End the item that is open."""
        if not self._kind:
            return
        item, text = self.items[-1], "".join(self._texts)
        if self._kind == "function_call":
            item["arguments"] = text
            done = {"arguments": text, "name": item["name"]}
            yield self._event("response.function_call_arguments.done", **done)
        else:
            kind = "output_text" if self._kind == "message" else "reasoning_text"
            part = _part(kind, text, self._logprobs)
            item["content"] = [part]
            done = {"text": text, **_logprobs(kind, self._logprobs)}
            yield self._event(f"response.{kind}.done", content_index=0, **done)
            yield self._event("response.content_part.done", content_index=0, part=part)
        item["status"] = status
        yield self._whole("response.output_item.done")
        self._kind, self._texts, self._logprobs = "", [], []

    def _into_text(
        self, kind: str, part: str, text: str, logprobs: Sequence[dict[str, Any]] = ()
    ) -> Iterator[dict[str, Any]]:
        if self._kind != kind:
            prefix, fields = _FIRST[kind]
            yield from self._open(kind, prefix, {**fields, "content": []})
            empty = _part(part, "", [])
            yield self._event("response.content_part.added", content_index=0, part=empty)
        self._texts.append(text)
        self._logprobs += logprobs
        delta = {"delta": text, **_logprobs(part, logprobs)}
        yield self._event(f"response.{part}.delta", content_index=0, **delta)

    def _open(self, kind: str, prefix: str, fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from self.close()
        self._kind = kind
        name = f"{prefix}_{uuid.uuid4().hex}"
        self.items.append({"id": name, "type": kind, "status": "in_progress", **fields})
        yield self._whole("response.output_item.added")

    def _whole(self, name: str) -> dict[str, Any]:
        item = dict(self.items[-1])
        return {"type": name, "output_index": len(self.items) - 1, "item": item}

    def _event(self, type: str, **fields: Any) -> dict[str, Any]:
        item = self.items[-1]
        place = {"item_id": item["id"], "output_index": len(self.items) - 1}
        return {"type": type, **place, **fields}


def _part(kind: str, text: str, logprobs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"type": kind, "text": text}
    if kind == "output_text":
        found["annotations"] = []
    return found | _logprobs(kind, logprobs)


def _logprobs(kind: str, logprobs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The field that text for the reader has, with or without anything in it."""
    return {"logprobs": list(logprobs)} if kind == "output_text" else {}
