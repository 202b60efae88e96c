"""OpenAI's Responses API: items and events, what items become, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from demo import demo
from riverrun.models.chat.output import Content, Reasoning
from scripted import CUT, NOW, WEATHER, rendered, script
from server_rig import PROMPT, Server, serving

PATH = "/v1/responses"
BODY: dict[str, Any] = {"input": "hi", "max_output_tokens": 12, "temperature": 0}
TOOLS = [{"type": "function", **each} for each in (WEATHER, NOW)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


def streamed(server: Server, **body: Any) -> list[Any]:
    """The events of a stream; each has its type as its name, and they are numbered."""
    answer = server.client.post(PATH, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    found = []
    for block in answer.text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def same(items: Any) -> Any:
    """Items without what differs from answer to answer."""
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in items]


def test_text_is_what_the_library_writes(server: Server) -> None:
    found = server.post(PATH, **BODY, store=True, metadata={"a": "b"})
    expected = "".join(demo().chat([{"role": "user", "content": "hi"}], 12, temperature=0))
    (item,) = found["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "incomplete")
    (part,) = item["content"]
    assert part == {"type": "output_text", "text": expected, "annotations": [], "logprobs": []}
    assert (found["object"], found["status"]) == ("response", "incomplete")
    assert found["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (found["store"], found["metadata"], found["temperature"]) == (False, {"a": "b"}, 0)
    usage = found["usage"]
    assert usage["output_tokens"] == 12
    assert usage["total_tokens"] == usage["input_tokens"] + 12
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}


def test_events_make_the_whole(server: Server) -> None:
    events, once = streamed(server, **BODY), server.post(PATH, **BODY)
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == [
        *("output_text.done", "content_part.done", "output_item.done", "incomplete")
    ]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert len(kinds) > 10
    text = "".join(event["delta"] for event in events[4:-4])
    assert text == events[-4]["text"] == once["output"][0]["content"][0]["text"]
    last = events[-1]["response"]
    assert same(last["output"]) == same(once["output"])
    assert last["output"] == [events[-2]["item"]]
    assert last.keys() == once.keys()
    assert events[0]["response"]["output"] == []
    assert events[0]["response"]["status"] == "in_progress"


def test_an_answer_that_ends(server: Server) -> None:
    found = server.post(PATH, **{**BODY, "input": PROMPT})
    assert (found["status"], found["output"]) == ("completed", [])
    assert streamed(server, **{**BODY, "input": PROMPT})[-1]["type"] == "response.completed"


def test_items_of_calls_and_reasoning(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    made = script(monkeypatch)
    body = {**BODY, "input": PROMPT * 3, "tools": TOOLS}
    found = server.post(PATH, **body)
    assert [tool["function"] for tool in made.asked["tools"]] == [WEATHER, NOW]
    reasoning, message, weather, now = found["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Let me see."}]
    assert reasoning["summary"] == []
    assert message["content"][0]["text"] == "I will look."
    assert (weather["type"], weather["name"]) == ("function_call", "weather")
    assert json.loads(weather["arguments"]) == {"city": "Oslo"}
    assert (now["name"], now["arguments"]) == ("now", "{}")
    assert weather["call_id"] != now["call_id"]
    events = streamed(server, **body)
    assert same(events[-1]["response"]["output"]) == same(found["output"])
    kinds = [event["type"].removeprefix("response.") for event in events]
    for kind in ("reasoning_text", "output_text", "function_call_arguments"):
        assert f"{kind}.delta" in kinds
        assert f"{kind}.done" in kinds
    assert kinds.count("output_item.added") == kinds.count("output_item.done") == 4
    arguments = [e["delta"] for e in events if "arguments.delta" in e["type"]]
    assert "".join(arguments) == weather["arguments"] + now["arguments"]


def test_a_call_that_was_cut_is_incomplete(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, CUT)
    found = server.post(PATH, **BODY, tools=TOOLS)
    statuses = [item["status"] for item in found["output"]]
    assert statuses == ["completed", "completed", "incomplete"]
    assert found["output"][-1]["arguments"] == '{"city": '


def test_what_templates_get_of_items(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    chats = rendered(monkeypatch)
    items = [
        {"role": "developer", "content": [{"type": "input_text", "text": "In English."}]},
        {"type": "message", "role": "user", "content": "Where?"},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "encrypted_content": None,
            "content": [
                {"type": "reasoning_text", "text": "Hm."},
            ],
        },
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [
                {"type": "output_text", "text": "I ", "annotations": []},
                {"type": "refusal", "refusal": "look."},
            ],
        },
        {
            "type": "function_call",
            "call_id": "a",
            "name": "weather",
            "arguments": '{"city":"Oslo"}',
        },
        {"type": "function_call", "call_id": "b", "name": "now", "arguments": ""},
        {"type": "function_call_output", "call_id": "a", "output": "rain"},
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [
                {"type": "input_text", "text": "noon"},
            ],
        },
        {"role": "assistant", "content": "It rains."},
        {"role": "user", "content": "Thanks"},
    ]
    server.post(PATH, **{**BODY, "input": items}, instructions="Be brief.")

    def call(name: str, function: str, arguments: dict[str, Any]) -> dict[str, Any]:
        made = {"name": function, "arguments": arguments}
        return {"id": name, "type": "function", "function": made}

    assert chats[-1].messages == [
        {"role": "system", "content": "Be brief.\n\nIn English."},
        {"role": "user", "content": "Where?"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm.",
            "tool_calls": [call("a", "weather", {"city": "Oslo"}), call("b", "now", {})],
        },
        {"role": "tool", "tool_call_id": "a", "content": "rain", "name": "weather"},
        {"role": "tool", "tool_call_id": "c", "content": "noon"},
        {"role": "assistant", "content": "It rains."},
        {"role": "user", "content": "Thanks"},
    ]


def test_fields_of_chats(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    chats = rendered(monkeypatch)
    script(monkeypatch)
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    choice = {"type": "function", "name": "now"}
    found = server.post(
        PATH,
        **BODY,
        text={"format": form, "verbosity": "low"},
        tools=TOOLS,
        tool_choice=choice,
        parallel_tool_calls=False,
        reasoning={"effort": "none", "summary": "auto"},
        include=["reasoning.encrypted_content"],
    )
    chat = chats[-1]
    assert (chat.response_schema, chat.choice, chat.parallel) == (schema, "now", False)
    assert chat.template_kwargs == {"reasoning_effort": "none", "enable_thinking": False}
    assert (found["tools"], found["tool_choice"]) == (TOOLS, choice)
    assert found["text"]["format"] == form
    server.post(PATH, **BODY, text={"format": {"type": "json_object"}})
    assert chats[-1].response_schema == {"type": "object"}


def test_prompts_that_were_kept_are_counted(server: Server) -> None:
    body = {**BODY, "input": "A long question. " * 20}
    server.post(PATH, **body)
    assert server.post(PATH, **body)["usage"]["input_tokens_details"]["cached_tokens"] > 50


LOGPROBS: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


def test_logprobs_are_those_of_the_library(server: Server) -> None:
    chat = demo().chat([{"role": "user", "content": "hi"}], 12, temperature=0, logprobs=2)
    list(chat)
    wanted = [
        {
            "token": entry["text"],
            "id": entry["token"],
            "bytes": entry["bytes"],
            "logprob": entry["logprob"],
        }
        for entry in chat.result.logprobs or ()
    ]
    found = server.post(PATH, **BODY, **LOGPROBS)
    entries = found["output"][0]["content"][0]["logprobs"]
    assert found["top_logprobs"] == 2
    assert [{k: v for k, v in e.items() if k != "top_logprobs"} for e in entries] == wanted
    for entry in entries:  # greedy: the likeliest is what was chosen
        top = entry["top_logprobs"]
        assert len(top) == 2 and top[0]["token"] == entry["token"]
        assert top[0]["logprob"] == entry["logprob"] >= top[1]["logprob"]
    events = streamed(server, **BODY, **LOGPROBS)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [entry for event in deltas for entry in event["logprobs"]] == entries
    for event in deltas:
        told = b"".join(bytes(entry["bytes"]) for entry in event["logprobs"])
        assert told.decode() == event["delta"]
    (done,) = [event for event in events if event["type"] == "response.output_text.done"]
    (part,) = [event for event in events if event["type"] == "response.content_part.done"]
    assert done["logprobs"] == part["part"]["logprobs"] == entries
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == entries


class FirstIsThought:
    """A parser to which the first five characters are reasoning."""

    def __init__(self) -> None:
        self.read = 0

    def feed(self, text: str) -> list[Any]:
        first, self.read = self.read, self.read + len(text)
        cut = max(0, min(len(text), 5 - first))
        found: list[Any] = []
        if cut:
            found.append(Reasoning(text[:cut], (first, first + cut)))
        if cut < len(text):
            found.append(Content(text[cut:], (first + cut, self.read)))
        return found

    def finish(self) -> list[Any]:
        return []


def test_tokens_of_reasoning_and_of_text(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = server.post(PATH, **BODY, **LOGPROBS)["output"][0]["content"][0]
    monkeypatch.setattr(script(monkeypatch), "parser", lambda **asked: FirstIsThought())
    found = server.post(PATH, **BODY, **LOGPROBS)
    thought = found["usage"]["output_tokens_details"]["reasoning_tokens"]
    reasoning, message = (item["content"][0] for item in found["output"])
    assert reasoning["text"] + message["text"] == whole["text"]
    assert "logprobs" not in reasoning
    assert 0 < thought < 12
    assert message["logprobs"] == whole["logprobs"][thought:]
    before = "".join(entry["token"] for entry in whole["logprobs"][:thought])
    assert len(before) >= 5 > len(before) - len(whole["logprobs"][thought - 1]["token"])
    told = [
        entry
        for event in streamed(server, **BODY, include=LOGPROBS["include"])
        if event["type"] == "response.output_text.delta"
        for entry in event["logprobs"]
    ]
    assert [entry["token"] for entry in told] == [e["token"] for e in message["logprobs"]]
    assert not any(entry["top_logprobs"] for entry in told)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no-input": ({"temperature": 0}, "input"),
    "empty-input": ({**BODY, "input": []}, "input"),
    "previous": ({**BODY, "previous_response_id": "resp_1"}, "previous_response_id"),
    "background": ({**BODY, "background": True}, "background"),
    "conversation": ({**BODY, "conversation": "conv_1"}, "conversation"),
    "prompt": ({**BODY, "prompt": {"id": "x"}}, "prompt"),
    "include": ({**BODY, "include": ["message.output_text.logprob"]}, "output_text.logprobs"),
    "top-logprobs": ({**BODY, "top_logprobs": 3}, "include"),
    "many-logprobs": ({**BODY, **LOGPROBS, "top_logprobs": 21}, "top_logprobs"),
    "item": ({**BODY, "input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
    "image": ({**BODY, "input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "image"),
    "role": ({**BODY, "input": [{"role": "x", "content": "y"}]}, "role"),
    "call": ({**BODY, "input": [{"type": "function_call", "name": "x"}]}, "call_id"),
    "tool": ({**BODY, "tools": [{"type": "web_search"}]}, "web_search"),
    "tool-without-name": ({**BODY, "tools": [{"type": "function"}]}, "name"),
    "choice": ({**BODY, "tool_choice": "required"}, "tool_choice"),
    "format": ({**BODY, "text": {"format": {"type": "xml"}}}, "xml"),
    "temperature": ({**BODY, "temperature": -1}, "temperature"),
    "unknown": ({**BODY, "instruction": "x"}, "instructions"),
    "long": ({**BODY, "input": "word " * 600}, "512"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_honoured_is_refused(server: Server, name: str) -> None:
    body, word = REFUSED[name]
    error = server.post(PATH, 400, **body)["error"]
    assert error["type"] in ("invalid_request_error", "exceed_context_size_error")
    assert word in error["message"]


def test_a_stream_that_breaks_says_that_it_failed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from riverrun.models.chat.output import CallArguments

    script(monkeypatch, [CallArguments(7, "no such call")])
    last = streamed(server, **BODY)[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert "IndexError" in last["response"]["error"]["message"]
    monkeypatch.undo()
    assert server.post(PATH, **BODY)["output"]


@pytest.fixture(scope="module")
def client(server: Server) -> Any:
    openai = pytest.importorskip("openai", reason="the openai package is not installed")
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0)


def test_the_client(server: Server, client: Any) -> None:
    text = server.post(PATH, **BODY)["output"][0]["content"][0]["text"]
    found = client.responses.create(model="default", **BODY)
    assert found.output_text == text
    assert found.usage.output_tokens == 12
    events = list(client.responses.create(model="default", **BODY, stream=True))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == text
    with client.responses.stream(model="default", **BODY) as stream:
        assert [event.type for event in stream][-1] == "response.incomplete"


def test_the_client_gets_logprobs(server: Server, client: Any) -> None:
    options: Any = {"model": "default", **BODY, **LOGPROBS}
    part = client.responses.create(**options).output[0].content[0]
    assert "".join(each.token for each in part.logprobs) == part.text
    assert all(len(each.top_logprobs) == 2 for each in part.logprobs)
    with client.responses.stream(**options) as stream:
        events = list(stream)
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    told = [each for event in deltas for each in event.logprobs]
    assert [each.logprob for each in told] == [each.logprob for each in part.logprobs]
    assert events[-1].response.output[0].content[0].logprobs == part.logprobs


def test_the_client_gets_calls(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch)
    options: Any = {"model": "default", **BODY, "input": PROMPT, "tools": TOOLS}
    with client.responses.stream(**options) as stream:
        final = stream.get_final_response()
    assert final.output_text == "I will look."
    assert [item.type for item in final.output] == [
        *("reasoning", "message", "function_call", "function_call")
    ]
    assert json.loads(final.output[2].arguments) == {"city": "Oslo"}
