"""Messages that hold something else than they should: calls whose arguments are no object, and any
odd value at any place. The answer says what is wrong, and is never an internal error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from scripted import rendered
from server_rig import Server, serving

HI = {"role": "user", "content": "hi"}
MISSING = object()
# Takes arguments apart as an object, as many templates do, and writes what there is of messages.
TEMPLATE = (
    "{%- for m in messages %}{{ m.role }}: {{ m.content }} {{ m.reasoning_content or '' }}"
    "{%- for c in m.tool_calls or [] %}{% for k, v in c.function.arguments | items %}"
    "{{ k }}={{ v }}{% endfor %}{% endfor %}\n{% endfor %}"
)


def chat(call: dict[str, Any]) -> dict[str, Any]:
    """A body for OpenAI's chats whose second message is a call."""
    calls = [{"id": "x", "type": "function", "function": call}]
    said = {"role": "assistant", "content": "a", "reasoning_content": "r", "tool_calls": calls}
    told = {"role": "tool", "tool_call_id": "x", "content": [{"type": "text", "text": "t"}]}
    return {"messages": [HI, said, told], "max_tokens": 1, "chat_template": TEMPLATE}


def ollama(call: dict[str, Any]) -> dict[str, Any]:
    said = {
        "role": "assistant",
        "content": "a",
        "thinking": "r",
        "tool_calls": [{"function": call}],
    }
    told = {"role": "tool", "tool_name": "f", "content": "t"}
    return {"messages": [HI, said, told], "stream": False, "options": {"num_predict": 1}}


def items(call: dict[str, Any]) -> dict[str, Any]:
    said = {"type": "function_call", "call_id": "x", **call}
    told = {"type": "function_call_output", "call_id": "x", "output": "t"}
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "r"}]}
    return {"input": [HI, thought, said, told], "max_output_tokens": 1}


def blocks(call: dict[str, Any]) -> dict[str, Any]:
    used = {"type": "tool_use", "id": "x", "name": call["name"]}
    if "arguments" in call:
        used["input"] = call["arguments"]
    told = {"type": "tool_result", "tool_use_id": "x", "content": [{"type": "text", "text": "t"}]}
    thought = {"type": "thinking", "thinking": "r", "signature": "s"}
    said = {"role": "assistant", "content": [thought, {"type": "text", "text": "a"}, used]}
    return {"messages": [HI, said, {"role": "user", "content": [told]}], "max_tokens": 1}


BODIES = {
    "/v1/chat/completions": chat,
    "/api/chat": ollama,
    "/v1/responses": items,
    "/v1/messages": blocks,
}
OBJECTS = [
    ({"a": [1]}, {"a": [1]}),
    ('{"a": [1]}', {"a": [1]}),
    (' {"a": "{}"}\n', {"a": "{}"}),
    *((empty, {}) for empty in (None, "", " ", [], {}, "{}", "null", MISSING)),
]
WRONG = ["not JSON", '{"a": ', "[1]", '"x"', "12", "[" * 100_000, [1], [{}], 12, 0, False, 1.5]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


def call(arguments: Any) -> dict[str, Any]:
    return {"name": "f", **({} if arguments is MISSING else {"arguments": arguments})}


def message_of(answer: Any) -> str:
    error = answer.json()["error"]
    return error if isinstance(error, str) else error["message"]


@pytest.mark.parametrize("path", BODIES)
def test_arguments_that_are_an_object_reach_the_template(
    server: Server, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    chats = rendered(monkeypatch)
    for given, expected in OBJECTS:
        server.post(path, **BODIES[path](call(given)))
        (found,) = [m for m in chats[-1].messages if m.get("tool_calls")]
        if path in ("/v1/responses", "/v1/messages"):
            assert found["tool_calls"][0]["function"]["arguments"] == expected


def test_templates_take_them_apart(server: Server) -> None:
    for given, expected in OBJECTS:
        body = {k: v for k, v in chat(call(given)).items() if k != "max_tokens"}
        prompt = server.post("/apply-template", **body)["prompt"]
        shown = "".join(f"{key}={value}" for key, value in expected.items())
        assert f"assistant: a r{shown}tool: t" in prompt


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("wrong", WRONG, ids=lambda value: repr(value)[:12])
def test_arguments_that_are_none_are_refused_by_place(
    server: Server, path: str, wrong: Any
) -> None:
    answer = server.client.post(path, json=BODIES[path](call(wrong)))
    assert answer.status_code == 400, answer.text
    place = {"/v1/responses": "input[2].arguments", "/v1/messages": "messages[1].content"}
    assert place.get(path, "messages[1].tool_calls[0].function.arguments") in message_of(answer)
    assert "expected an object, or its JSON text" in message_of(answer)


def places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all values in a value."""
    if before:
        yield before
    if isinstance(value, dict | list):
        for key, found in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(found, (*before, key))


def replaced(value: Any, place: tuple[Any, ...], other: Any) -> Any:
    """The value with something else at a place."""
    if not place:
        return other
    if isinstance(value, dict):
        return {**value, place[0]: replaced(value[place[0]], place[1:], other)}
    return [replaced(v, place[1:], other) if i == place[0] else v for i, v in enumerate(value)]


ODD = [None, 7, "x", [[]], {"a": 1}]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_odd_values_anywhere_are_no_internal_errors(server: Server, path: str, odd: Any) -> None:
    body = BODIES[path](call({"a": 1}))
    name = "input" if "input" in body else "messages"
    seen = set()
    for place in places(body[name]):
        other = {**body, name: replaced(body[name], place, odd)}
        answer = server.client.post(path, json=other)
        seen.add(answer.status_code)
        assert answer.status_code in (200, 400), (place, answer.text)
        assert "internal" not in answer.text, (place, answer.text)
        if answer.status_code == 400:
            assert message_of(answer)
    assert 400 in seen
