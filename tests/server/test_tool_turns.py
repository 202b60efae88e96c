"""A conversation with tools over several turns: the same with drafts, without, and uncached."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from server_rig import Server, serving

pytest.importorskip("llguidance")
CHAT = "/v1/chat/completions"
# Hermes' form of calls in ChatML, as many models are trained on.
TEMPLATE = (
    "{%- if tools %}<|im_start|>system\n# Tools\n<tools>\n"
    "{%- for tool in tools %}{{ tool | tojson }}\n{% endfor %}</tools>\n"
    'Answer with <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>\n{% endif %}'
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{%- for c in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PARAMETERS = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "maxLength": 12, "pattern": "^[a-z/]+$"},
        "line": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["path", "line"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "read_file", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "list_files", "parameters": PARAMETERS}},
]
BODY: dict[str, Any] = {
    "tools": TOOLS,
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "chat_template": TEMPLATE,
    "temperature": 0,
    "max_tokens": 120,
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(n_ctx=2048, spec="mtp,ngram-mod", parallel=2) as made:
        yield made


def turns(server: Server, **more: Any) -> list[tuple[str, str]]:
    """Name and arguments of the call of each of four turns, whose results are told in between."""
    messages: list[Any] = [{"role": "user", "content": "Where is quicksort?"}]
    found = []
    for turn in range(4):
        answer = server.post(CHAT, messages=messages, **BODY, **more)
        choice = answer["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        (call,) = choice["message"]["tool_calls"]
        found.append((call["function"]["name"], call["function"]["arguments"]))
        result = {"role": "tool", "tool_call_id": call["id"], "content": f"no file, try {turn}"}
        messages += [choice["message"], result]
    return found


def test_drafts_and_caches_change_nothing(server: Server) -> None:
    drafted = turns(server)
    for name, arguments in drafted:
        assert name in ("read_file", "list_files")
        values = json.loads(arguments)
        assert set(values) == {"path", "line"} and 1 <= values["line"] <= 99
    assert turns(server, speculative=False) == drafted
    assert turns(server, cache_prompt=False) == drafted


def test_a_stream_gives_the_same_calls(server: Server) -> None:
    messages = [{"role": "user", "content": "Where is quicksort?"}]
    whole = server.post(CHAT, messages=messages, **BODY)["choices"][0]["message"]["tool_calls"]
    found = server.stream(CHAT, messages=messages, **BODY)
    deltas = [e["choices"][0]["delta"] for e in found if e != "[DONE]"]
    parts = [part for delta in deltas for part in delta.get("tool_calls", ())]
    assert [part["index"] for part in parts] == [0] * len(parts)
    assert [part["function"]["name"] for part in parts if "name" in part["function"]] == [
        whole[0]["function"]["name"]
    ]
    assert sum("id" in part for part in parts) == 1
    arguments = "".join(part["function"]["arguments"] for part in parts)
    assert arguments == whole[0]["function"]["arguments"]
    assert found[-2]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_named_call(server: Server) -> None:
    choice = {"type": "function", "function": {"name": "list_files"}}
    body = {**BODY, "tool_choice": choice, "messages": [{"role": "user", "content": "x"}]}
    (call,) = server.post(CHAT, **body)["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "list_files"


def test_a_call_that_max_tokens_cuts(server: Server) -> None:
    body = {**BODY, "max_tokens": 16, "messages": [{"role": "user", "content": "x"}]}
    choice = server.post(CHAT, **body)["choices"][0]
    assert choice["finish_reason"] == "length"
    whole = server.post(CHAT, **{**body, "max_tokens": 120})["choices"][0]["message"]["tool_calls"]
    calls = choice["message"].get("tool_calls", [])
    for cut, full in zip(calls, whole, strict=False):
        assert full["function"]["arguments"].startswith(cut["function"]["arguments"])


def test_no_calls_where_none_are_wanted(server: Server) -> None:
    body = {**BODY, "tool_choice": "none", "max_tokens": 8}
    found = server.post(CHAT, messages=[{"role": "user", "content": "x"}], **body)
    assert "tool_calls" not in found["choices"][0]["message"]
