"""Anthropic's interface: blocks and events, what messages become, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from demo import demo
from riverrun.models.chat.output import formats
from riverrun.server import prompting
from scripted import CUT, NOW, WEATHER, rendered, script
from server_rig import PROMPT, Server, serving

PATH = "/v1/messages"
MESSAGES = [{"role": "user", "content": "hi"}]
BODY: dict[str, Any] = {
    "model": "default",
    "max_tokens": 12,
    "temperature": 0,
    "messages": MESSAGES,
}
TOOLS = [
    {
        "name": each["name"],
        "description": each.get("description"),
        "input_schema": each["parameters"],
        "cache_control": {"type": "ephemeral"},
    }
    for each in (WEATHER, NOW)
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(api_keys=("secret",)) as made:
        made.client.headers["x-api-key"] = "secret"
        yield made


def asked(*content: Any, **more: Any) -> dict[str, Any]:
    """A body whose only message has these blocks."""
    return {**BODY, "messages": [{"role": "user", "content": list(content)}], **more}


def streamed(server: Server, **body: Any) -> list[Any]:
    """The events of a stream; each has its type as its name."""
    answer = server.client.post(PATH, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    found = []
    for block in answer.text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def joined(events: list[Any]) -> list[Any]:
    """The blocks that events make."""
    blocks = list[Any]()
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            kind, text = (event["delta"][key] for key in event["delta"])
            field = {"text_delta": "text", "thinking_delta": "thinking"}.get(kind, "json")
            blocks[event["index"]][field] += text
    for block in blocks:
        found = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(found)
    return blocks


def test_text_is_what_the_library_writes(server: Server) -> None:
    found = server.post(PATH, **BODY)
    expected = "".join(demo().chat(MESSAGES, 12, temperature=0))
    assert found["content"] == [{"type": "text", "text": expected}]
    assert (found["type"], found["role"], found["model"]) == (
        *("message", "assistant"),
        "riverrun-demo-q8_0",
    )
    assert (found["stop_reason"], found["stop_sequence"]) == ("max_tokens", None)
    assert found["usage"]["output_tokens"] == 12
    kept = found["usage"]["input_tokens"] + found["usage"]["cache_read_input_tokens"]
    assert kept == server.post(f"{PATH}/count_tokens", messages=MESSAGES)["input_tokens"]


def test_events_make_the_whole(server: Server) -> None:
    events, once = streamed(server, **BODY), server.post(PATH, **BODY)
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[3:-3]) == {"content_block_delta"}
    assert len(kinds) > 8
    assert events[0]["message"]["content"] == []
    assert joined(events) == once["content"]
    assert events[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert events[-2]["usage"].keys() == once["usage"].keys()


def test_prompts_that_were_kept_are_counted_apart(server: Server) -> None:
    body = {**BODY, "messages": [{"role": "user", "content": "A long question. " * 20}]}
    first, second = (server.post(PATH, **body)["usage"] for _ in range(2))
    assert second["cache_read_input_tokens"] > 50
    assert second["input_tokens"] + second["cache_read_input_tokens"] == first["input_tokens"]


def test_the_text_that_ended_it_is_told(server: Server) -> None:
    text = server.post(PATH, **BODY)["content"][0]["text"]
    body = {**BODY, "stop_sequences": ["never there", text[3:7]]}
    found = server.post(PATH, **body)
    assert found["content"][0]["text"] == text[:3]
    assert (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", text[3:7])
    assert streamed(server, **body)[-2]["delta"]["stop_sequence"] == text[3:7]


def test_ends_of_turns_and_of_the_context(server: Server) -> None:
    found = server.post(PATH, **asked({"type": "text", "text": PROMPT}))
    assert (found["stop_reason"], found["content"]) == ("end_turn", [])
    assert server.post(PATH, **{**BODY, "max_tokens": 0})["stop_reason"] == "max_tokens"
    begun = [*MESSAGES, {"role": "assistant", "content": "def f(x):\n    return x\n\n" * 40}]
    found = server.post(PATH, **{**BODY, "messages": begun, "max_tokens": 4000})
    assert found["stop_reason"] == "model_context_window_exceeded"


def test_blocks_of_calls_and_reasoning(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    made = script(monkeypatch)
    body = {**BODY, "tools": TOOLS, "stop_sequences": None}
    found = server.post(PATH, **body)
    assert [t["function"]["parameters"] for t in made.asked["tools"]] == [
        WEATHER["parameters"],
        NOW["parameters"],
    ]
    thinking, text, weather, now = found["content"]
    assert thinking == {"type": "thinking", "thinking": "Let me see.", "signature": ""}
    assert text == {"type": "text", "text": "I will look."}
    assert (weather["name"], weather["input"]) == ("weather", {"city": "Oslo"})
    assert (now["name"], now["input"]) == ("now", {})
    assert weather["id"] != now["id"]
    blocks = joined(streamed(server, **body))
    for block, other in zip(blocks, found["content"], strict=True):
        assert {**block, "id": ""} == {**other, "id": ""}
    omitted = server.post(PATH, **body, thinking={"type": "adaptive", "display": "omitted"})
    assert omitted["content"][0] == {**thinking, "thinking": ""}


def test_why_an_answer_with_calls_ended(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch)
    body = asked({"type": "text", "text": PROMPT}, tools=TOOLS)
    assert server.post(PATH, **body)["stop_reason"] == "tool_use"
    script(monkeypatch, CUT)
    found = server.post(PATH, **BODY, tools=TOOLS)
    assert found["stop_reason"] == "max_tokens"
    assert found["content"][-1]["input"] == {}


def test_a_call_that_must_come_comes(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's own text, held to the grammar of a family's calls and read by its parser."""
    pytest.importorskip("llguidance")
    family: Any = formats()["hermes"]()
    monkeypatch.setattr(prompting, "format_for", lambda *given: family)
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    tools = [{"name": "weather", "input_schema": schema}]
    body = {**BODY, "max_tokens": 80, "tools": tools, "tool_choice": {"type": "any"}}
    found = server.post(PATH, **body)["content"]
    assert (found[0]["name"], found[0]["input"]) == ("weather", {"city": "Oslo"})
    first = joined(streamed(server, **body))[0]
    assert (first["name"], first["input"]) == ("weather", {"city": "Oslo"})


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ("auto", True)),
        ({"type": "any", "disable_parallel_tool_use": True}, ("required", False)),
        ({"type": "tool", "name": "now"}, ("now", True)),
        ({"type": "none"}, ("none", True)),
    ],
    ids=["default", "any", "tool", "none"],
)
def test_choices(
    server: Server, monkeypatch: pytest.MonkeyPatch, choice: Any, expected: tuple[str, bool]
) -> None:
    chats = rendered(monkeypatch)
    script(monkeypatch)
    server.post(PATH, **BODY, tools=TOOLS, tool_choice=choice)
    assert (chats[-1].choice, chats[-1].parallel) == expected


@pytest.mark.parametrize(
    ("fields", "kwargs"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, {"enable_thinking": True}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"output_config": {"effort": "max"}}, {"reasoning_effort": "high"}),
        ({}, {}),
    ],
    ids=["enabled", "disabled", "effort", "most", "none"],
)
def test_thinking(
    server: Server, monkeypatch: pytest.MonkeyPatch, fields: Any, kwargs: dict[str, Any]
) -> None:
    chats = rendered(monkeypatch)
    server.post(PATH, **BODY, **fields)
    assert chats[-1].template_kwargs == kwargs


THINKING: dict[str, Any] = {
    **BODY,
    "messages": [*MESSAGES, {"role": "assistant", "content": "<think>"}],
    "max_tokens": 40,
    "stop_sequences": ["</think"],
}


def test_reasoning_ends_after_its_budget(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    family: Any = formats()["hermes"]()
    monkeypatch.setattr(prompting, "format_for", lambda *given: family)
    free = server.post(PATH, **THINKING)["content"]
    assert [block["type"] for block in free] == ["thinking"]
    body = {**THINKING, "thinking": {"type": "enabled", "budget_tokens": 5}}
    cut = server.post(PATH, **body)
    assert (cut["stop_reason"], len(cut["content"])) == ("stop_sequence", 1)
    assert 0 < len(cut["content"][0]["thinking"]) < len(free[0]["thinking"])
    assert free[0]["thinking"].startswith(cut["content"][0]["thinking"])
    body = {**body, "stop_sequences": []}
    found = server.post(PATH, **body)["content"]
    assert found[0]["thinking"] == cut["content"][0]["thinking"]
    assert [block["type"] for block in found] == ["thinking", "text"]
    assert joined(streamed(server, **body)) == found
    for loose in (
        {"budget_tokens": 500},
        {"type": "disabled", "budget_tokens": 5},
        {"type": "adaptive"},
    ):
        thinking = {"type": "enabled", **loose}
        assert server.post(PATH, **{**THINKING, "thinking": thinking})["content"] == free
    chat = {"temperature": 0, "max_tokens": 40, "continue_final_message": True}
    said = server.post(
        "/v1/chat/completions", **chat, messages=THINKING["messages"], thinking=body["thinking"]
    )["choices"][0]["message"]
    assert said["reasoning_content"] == found[0]["thinking"]


def test_budgets_that_cannot_be_held_to(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    thinking = {"type": "enabled", "budget_tokens": 5}
    chat = {"messages": MESSAGES, "max_tokens": 4, "thinking": thinking}
    family: Any = formats()["hermes"]()
    monkeypatch.setattr(prompting, "format_for", lambda *given: family)
    error = server.post("/v1/chat/completions", 400, **chat, grammar='start: "a"')["error"]
    assert "budget_tokens" in error["message"] and "grammar" in error["message"]
    family = formats()["harmony"]()
    found = server.post(PATH, 400, **BODY, thinking=thinking)
    assert "budget_tokens" in found["error"]["message"] and "harmony" in found["error"]["message"]
    assert server.post(PATH, **BODY, thinking={"type": "enabled", "budget_tokens": 512})["content"]
    monkeypatch.undo()  # the demo model does not reason, and any budget is held to
    assert (
        server.post(PATH, **BODY, thinking=thinking)["content"]
        == server.post(PATH, **BODY)["content"]
    )


def test_what_templates_get_of_messages(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    chats = rendered(monkeypatch)
    mark = {"cache_control": {"type": "ephemeral"}}
    use = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}
    answer = [
        {"type": "thinking", "thinking": "Hm.", "signature": "x"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "I look."},
        use,
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain", **mark},
        {
            "type": "tool_result",
            "tool_use_id": "toolu_2",
            "is_error": True,
            "content": [
                {"type": "text", "text": "no"},
                {"type": "text", "text": "such city"},
            ],
        },
        {"type": "text", "text": "And", **mark},
        {"type": "text", "text": "now?"},
    ]
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": answer},
        {"role": "user", "content": results},
    ]
    system = [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief.", **mark}]
    body = {**BODY, "messages": messages, "system": system, "metadata": {"user_id": "x"}}
    server.post(PATH, **body, service_tier="auto")
    assert chats[-1].messages == [
        {"role": "system", "content": "Be\n\nbrief."},
        *MESSAGES,
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm.",
            "tool_calls": [
                {
                    "id": "toolu_1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": {"city": "Oslo"}},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": "rain", "name": "weather"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": "Error: no\n\nsuch city"},
        {"role": "user", "content": "And\n\nnow?"},
    ]


def test_an_answer_that_has_begun_goes_on(server: Server) -> None:
    text = server.post(PATH, **BODY)["content"][0]["text"]
    begun = [*MESSAGES, {"role": "assistant", "content": text[:5]}]
    found = server.post(PATH, **{**BODY, "messages": begun})["content"][0]["text"]
    assert found.startswith(text[5:12])


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no-max-tokens": ({"messages": MESSAGES}, "max_tokens"),
    "no-messages": ({**BODY, "messages": []}, "messages"),
    "role": ({**BODY, "messages": [{"role": "x", "content": "y"}]}, "role"),
    "image": (asked({"type": "image", "source": {}}), "image"),
    "document": (asked({"type": "document", "source": {}}), "document"),
    "image-of-result": (
        asked({"type": "tool_result", "tool_use_id": "x", "content": [{"type": "image"}]}),
        "image",
    ),
    "result-without-id": (asked({"type": "tool_result"}), "tool_use_id"),
    "server-tool": (
        {**BODY, "tools": [{"type": "web_search_20250305", "name": "x"}]},
        "web_search",
    ),
    "tool-without-name": ({**BODY, "tools": [{"input_schema": {}}]}, "name"),
    "choice": (
        {**BODY, "tools": TOOLS, "tool_choice": {"type": "tool", "name": "x"}},
        "tool_choice",
    ),
    "mcp": ({**BODY, "mcp_servers": [{"url": "x"}]}, "mcp_servers"),
    "temperature": ({**BODY, "temperature": -1}, "temperature"),
    "unknown": ({**BODY, "max_token": 1}, "max_tokens"),
    "budget": ({**BODY, "thinking": {"type": "enabled", "budget_tokens": 0}}, "budget_tokens"),
    "format": ({**BODY, "output_config": {"format": {"type": "xml"}}}, "output_config"),
    "long": (asked({"type": "text", "text": "word " * 600}), "512"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_honoured_is_refused(server: Server, name: str) -> None:
    body, word = REFUSED[name]
    found = server.post(PATH, 400, **body)
    assert (found["type"], found["error"]["type"]) == ("error", "invalid_request_error")
    assert word in found["error"]["message"]


def test_errors_of_other_kinds(server: Server) -> None:
    assert server.post(PATH, 404, **{**BODY, "model": "x"})["error"]["type"] == "not_found_error"
    answer = server.client.post(PATH, json=BODY, headers={"x-api-key": "wrong"})
    assert answer.status_code == 401
    assert answer.json()["error"]["type"] == "authentication_error"


def test_a_stream_that_breaks_ends_with_an_error(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from riverrun.models.chat.output import CallArguments

    script(monkeypatch, [CallArguments(7, "no such call")])
    events = streamed(server, **BODY)
    assert events[-1]["type"] == "error"
    assert events[-1]["error"]["type"] == "api_error"
    monkeypatch.undo()
    assert server.post(PATH, **BODY)["content"]


@pytest.fixture(scope="module")
def client(server: Server) -> Any:
    anthropic = pytest.importorskip("anthropic", reason="the anthropic package is not installed")
    return anthropic.Anthropic(base_url=server.url, api_key="secret", max_retries=0)


def test_the_client(server: Server, client: Any) -> None:
    expected = server.post(PATH, **BODY)["content"][0]["text"]
    options = {name: BODY[name] for name in ("model", "max_tokens", "messages")}
    options["extra_body"] = {"temperature": 0}
    found = client.messages.create(**options)
    assert found.content[0].text == expected
    with client.messages.stream(**options) as stream:
        assert "".join(stream.text_stream) == expected
        assert stream.get_final_message().usage.output_tokens == 12
    counted = client.messages.count_tokens(model="default", messages=MESSAGES)
    assert counted.input_tokens == len(demo().chat_prompt(MESSAGES).tokens)


def test_the_client_gets_calls(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch)
    options = {name: BODY[name] for name in ("model", "max_tokens", "messages")}
    with client.messages.stream(**options, tools=TOOLS) as stream:
        found = stream.get_final_message()
    assert [block.type for block in found.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert found.content[2].input == {"city": "Oslo"}
