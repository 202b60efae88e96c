"""Ollama's interface: shapes, lines and whole answers, what is honoured, ignored and refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from demo import demo
from paths import DEMO
from scripted import ANSWER, CUT, NOW, WEATHER, WRONG, rendered, script
from server_rig import PROMPT, Server, serving

MODEL = "riverrun-demo-q8_0"
OPTIONS = {"temperature": 0, "num_predict": 12}
MESSAGES = [{"role": "user", "content": "hi"}]
CHAT = {"model": MODEL, "messages": MESSAGES, "options": OPTIONS}
RAW = {"model": MODEL, "prompt": PROMPT, "raw": True, "options": OPTIONS}
TOOLS = [{"type": "function", "function": each} for each in (WEATHER, NOW)]
TIMES = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    (folder / "other.gguf").symlink_to(DEMO)
    (folder / "broken.gguf").write_bytes(b"GGUF")
    with serving(models=folder) as made:
        yield made


def whole(server: Server, path: str, **body: Any) -> Any:
    return server.post(path, **{"stream": False, **body})


def lines(server: Server, path: str, **body: Any) -> list[Any]:
    """Ollama streams unless it is told otherwise."""
    answer = server.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def error(server: Server, path: str, status: int = 400, **body: Any) -> str:
    found = server.post(path, status, **body)
    assert list(found) == ["error"]
    return found["error"]


def test_raw_text_is_what_the_library_writes(server: Server) -> None:
    expected = "".join(demo().generate(PROMPT, 12, temperature=0))
    found = whole(server, "/api/generate", **RAW)
    assert found["response"] == expected
    assert (found["model"], found["done"], found["done_reason"]) == (MODEL, True, "length")
    assert found["prompt_eval_count"] == len(demo().tokenize(PROMPT))
    assert found["eval_count"] == 12
    assert all(isinstance(found[name], int) and found[name] > 0 for name in TIMES)
    assert found["total_duration"] >= found["prompt_eval_duration"] + found["eval_duration"]
    assert "context" not in found


@pytest.mark.parametrize(("path", "body"), [("/api/generate", RAW), ("/api/chat", CHAT)])
def test_lines_join_to_the_whole(server: Server, path: str, body: dict[str, Any]) -> None:
    def text(found: Any) -> str:
        return found["response"] if "response" in found else found["message"]["content"]

    streamed, once = lines(server, path, **body), whole(server, path, **body)
    assert len(streamed) > 3
    assert "".join(map(text, streamed)) == text(once) != ""
    assert [found["done"] for found in streamed] == [False] * (len(streamed) - 1) + [True]
    assert set(streamed[-1]) == set(once)
    assert streamed[-1]["done_reason"] == once["done_reason"] == "length"


def test_a_stop_ends_it(server: Server) -> None:
    text = whole(server, "/api/generate", **RAW)["response"]
    found = whole(server, "/api/generate", **{**RAW, "options": {**OPTIONS, "stop": [text[4:7]]}})
    assert found["response"] == text[:4]
    assert found["done_reason"] == "stop"


def test_a_prompt_is_a_chat(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    chats = rendered(monkeypatch)
    chat = whole(server, "/api/chat", **CHAT)
    body = {"model": MODEL, "prompt": "hi", "options": OPTIONS}
    assert whole(server, "/api/generate", **body)["response"] == chat["message"]["content"]
    whole(server, "/api/generate", **body, system="Be brief.", think=False)
    assert [m["role"] for m in chats[-1].messages] == ["system", "user"]
    assert chats[-1].template_kwargs == {"enable_thinking": False}


def test_a_context_goes_on(server: Server) -> None:
    body = {"model": MODEL, "prompt": "hi", "options": OPTIONS}
    first = whole(server, "/api/generate", **body)
    assert first["prompt_eval_count"] + first["eval_count"] == len(first["context"])
    second = lines(server, "/api/generate", **{**body, "context": first["context"]})[-1]
    assert second["context"][: len(first["context"])] == first["context"]
    assert second["prompt_eval_count"] == len(first["context"]) + first["prompt_eval_count"]
    assert "token" in error(server, "/api/generate", **{**body, "context": [10**9]})


def test_an_answer_that_ended_stands_ended_in_its_context(server: Server) -> None:
    body = {"model": MODEL, "prompt": PROMPT, "options": OPTIONS}
    found = whole(server, "/api/generate", **body)
    assert found["done_reason"] == "stop"
    assert found["context"][-1] == demo().tokenizer.token_id("<|im_end|>")


def test_log_probabilities(server: Server) -> None:
    body = {**RAW, "logprobs": True, "top_logprobs": 2}
    once = whole(server, "/api/generate", **body)["logprobs"]
    assert len(once) == 12
    assert all(len(entry["top_logprobs"]) == 2 for entry in once)
    assert once[0]["token"] == once[0]["top_logprobs"][0]["token"]
    assert bytes(once[0]["bytes"]).decode() == once[0]["token"]
    streamed = [
        e for found in lines(server, "/api/generate", **body) for e in found.get("logprobs", ())
    ]
    assert [e["token"] for e in streamed] == [e["token"] for e in once]


def test_calls_reasoning_and_text(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    made = script(monkeypatch)
    body = {**CHAT, "tools": TOOLS}
    message = whole(server, "/api/chat", **body)["message"]
    assert made.asked["tools"] == TOOLS
    assert message["content"] == "I will look."
    assert message["thinking"] == "Let me see."
    functions = [call["function"] for call in message["tool_calls"]]
    assert functions == [
        {"index": 0, "name": "weather", "arguments": {"city": "Oslo"}},
        {"index": 1, "name": "now", "arguments": {}},
    ]
    parts = [found["message"] for found in lines(server, "/api/chat", **body)]
    assert "".join(part["content"] for part in parts) == message["content"]
    assert "".join(part.get("thinking", "") for part in parts) == message["thinking"]
    called = [call["function"] for part in parts for call in part.get("tool_calls", ())]
    assert called == functions


def test_a_call_that_was_cut_is_left_out(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, CUT)
    found = whole(server, "/api/chat", **CHAT, tools=TOOLS)
    assert "tool_calls" not in found["message"]
    assert found["done_reason"] == "length"


def test_arguments_that_are_no_object_are_an_error(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, WRONG)
    assert "weather" in error(server, "/api/chat", 500, **CHAT, tools=TOOLS, stream=False)
    assert "weather" in lines(server, "/api/chat", **CHAT, tools=TOOLS)[-1]["error"]
    assert whole(server, "/api/generate", **RAW)["done"]


def test_what_templates_get_of_messages(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    chats = rendered(monkeypatch)
    call = {"function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    given = [
        *MESSAGES,
        {"role": "assistant", "thinking": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_name": "weather", "content": "rain"},
    ]
    whole(server, "/api/chat", **{**CHAT, "messages": given})
    assert chats[-1].messages[1:] == [
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "Hm.",
            "tool_calls": [{**call, "type": "function"}],
        },
        {"role": "tool", "content": "rain", "name": "weather"},
    ]


def test_a_format(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llguidance")
    schema: Any = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"]}
    schema["additionalProperties"] = False
    # Whitespace between the parts is the model's choice.
    found = whole(server, "/api/generate", **RAW | {"options": {"temperature": 0}}, format=schema)
    assert json.loads(found["response"]) == {"a": "x"}
    chats = rendered(monkeypatch)
    whole(server, "/api/chat", **CHAT, format="json")
    answer = whole(server, "/api/chat", **CHAT | {"options": {"temperature": 0}}, format=schema)
    assert json.loads(answer["message"]["content"]) == {"a": "x"}
    assert [chat.response_schema for chat in chats] == [{"type": "object"}, schema]


def test_embeddings(server: Server) -> None:
    found = server.post("/api/embed", model=MODEL, input=["one", "two"])
    assert len(found["embeddings"]) == 2
    assert sum(x * x for x in found["embeddings"][0]) == pytest.approx(1, abs=1e-5)
    assert found["prompt_eval_count"] == sum(len(demo().tokenize(t)) for t in ("one", "two"))
    one = server.post("/api/embed", model=MODEL, input="one", dimensions=8)["embeddings"][0]
    assert len(one) == 8
    old = server.post("/api/embeddings", model=MODEL, prompt="one")["embedding"]
    norm = sum(x * x for x in old) ** 0.5
    assert [x / norm for x in old] == pytest.approx(found["embeddings"][0], abs=1e-5)
    assert server.post("/api/embed", model=MODEL, input=[])["embeddings"] == []


def test_texts_that_are_too_long_are_cut_unless_that_is_refused(server: Server) -> None:
    words = "word " * 600
    assert server.post("/api/embed", model=MODEL, input=words)["prompt_eval_count"] == 512
    assert "512" in error(server, "/api/embed", model=MODEL, input=words, truncate=False)
    assert "512" in error(
        server, "/api/chat", **{**CHAT, "messages": [{**MESSAGES[0], "content": words}]}
    )


def test_models_are_listed(server: Server) -> None:
    found = {each["name"]: each for each in server.client.get("/api/tags").json()["models"]}
    assert set(found) == {MODEL, "other", "broken"}
    details = found[MODEL]["details"]
    assert (details["format"], details["family"]) == ("gguf", "qwen35")
    assert (details["parameter_size"], details["quantization_level"]) == ("12.8M", "Q8_0")
    assert found["broken"]["details"]["family"] == "unknown"
    assert found["other"]["size"] == DEMO.stat().st_size


def test_a_model_is_shown(server: Server) -> None:
    found = server.post("/api/show", model=f"{MODEL}:latest")
    assert found["capabilities"] == ["completion"]
    assert found["model_info"]["qwen35.block_count"] == 13
    assert found["model_info"]["tokenizer.ggml.tokens"] is None
    assert "im_start" in found["template"]
    found = server.post("/api/show", name="other", verbose=True)
    assert len(found["model_info"]["tokenizer.ggml.tokens"]) == 6144
    assert "nothing" in error(server, "/api/show", 404, model="nothing")


@pytest.mark.parametrize(
    ("template", "tools", "thinking"),
    [
        ("{% for t in tools %}{% endfor %}", True, False),
        ("{% if enable_thinking %}<think>{% endif %}", False, True),
        ("{{ messages }}", False, False),
    ],
)
def test_capabilities_are_the_templates(template: str, tools: bool, thinking: bool) -> None:
    from riverrun.server.facts import Facts

    found = Facts("llama", 7_615_616_512, "Q4_K_M", template, False, {}, "")
    assert (found.has_tools, found.has_thinking) == (tools, thinking)
    assert found.size_label == "7.62B"


def test_models_come_and_go(server: Server) -> None:
    def loaded() -> dict[str, Any]:
        return {each["name"]: each for each in server.client.get("/api/ps").json()["models"]}

    assert whole(server, "/api/generate", model="other")["done_reason"] == "load"
    assert loaded()["other"]["context_length"] == 512
    assert loaded()["other"]["size"] > DEMO.stat().st_size / 2
    assert loaded()[MODEL]["expires_at"].startswith("9999")
    before = loaded()["other"]["expires_at"]
    whole(server, "/api/chat", model="other", messages=[], keep_alive="2h")
    assert loaded()["other"]["expires_at"] > before
    whole(server, "/api/chat", model="other", keep_alive=-1)
    assert loaded()["other"]["expires_at"].startswith("9999")
    assert whole(server, "/api/generate", model="other", keep_alive=0)["done_reason"] == "unload"
    assert set(loaded()) == {MODEL}
    assert whole(server, "/api/generate", model="other", keep_alive=0)["done_reason"] == "unload"
    assert "main model" in error(server, "/api/generate", model=MODEL, keep_alive=0)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(5, 5), (2.5, 2.5), ("5m", 300), ("1h30m", 5400), ("250ms", 0.25), ("-1", -1), ("-2m", -1)],
)
def test_durations(given: Any, seconds: float) -> None:
    from riverrun.server.wire.ollama import read_duration

    assert read_duration(given) == seconds


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "duration": ("/api/chat", {**CHAT, "keep_alive": "soon"}, "keep_alive"),
    "image": ("/api/generate", {**RAW, "images": ["aGk="]}, "images"),
    "image-of-chat": (
        "/api/chat",
        {**CHAT, "messages": [{**MESSAGES[0], "images": ["x"]}]},
        "images",
    ),
    "template": ("/api/generate", {**RAW, "template": "{{ .Prompt }}"}, "template"),
    "mirostat": ("/api/generate", {**RAW, "options": {"mirostat": 1}}, "mirostat"),
    "option": ("/api/generate", {**RAW, "options": {"temprature": 1}}, "temperature"),
    "num_ctx": ("/api/generate", {**RAW, "options": {"num_ctx": 4096}}, "-c 4096"),
    "raw-system": ("/api/generate", {**RAW, "system": "x"}, "raw"),
    "suffix": ("/api/generate", {**RAW, "raw": False, "suffix": "x"}, "fim"),
    "suffix-system": ("/api/generate", {**RAW, "suffix": "x", "system": "x"}, "system"),
    "think": ("/api/chat", {**CHAT, "think": "high"}, "thinking"),
    "think-how": ("/api/chat", {**CHAT, "think": "much"}, "think"),
    "format": ("/api/chat", {**CHAT, "format": "yaml"}, "format"),
    "role": ("/api/chat", {**CHAT, "messages": [{"role": "x"}]}, "role"),
    "top": ("/api/chat", {**CHAT, "top_logprobs": 2}, "logprobs"),
    "pull": ("/api/pull", {"model": "x"}, "--models"),
    "create": ("/api/create", {"model": "x"}, "--models"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_honoured_is_refused(server: Server, name: str) -> None:
    path, body, word = REFUSED[name]
    assert word in error(server, path, **body)


def test_an_unknown_model_is_a_404(server: Server) -> None:
    assert "nothing" in error(server, "/api/chat", 404, **{**CHAT, "model": "nothing"})


def test_hardware_options_change_nothing(server: Server) -> None:
    options = {**OPTIONS, "num_gpu": 99, "num_thread": 3, "numa": True, "num_ctx": 512}
    options |= {"mirostat": 0, "tfs_z": 1.0, "typical_p": 1.0, "penalize_newline": True}
    found = whole(server, "/api/generate", **{**RAW, "options": options, "keep_alive": "5m"})
    assert found["response"] == whole(server, "/api/generate", **RAW)["response"]


def test_the_client(server: Server) -> None:
    ollama = pytest.importorskip("ollama", reason="the ollama package is not installed")
    client = ollama.Client(host=server.url)
    assert MODEL in [each.model for each in client.list().models]
    assert client.show(MODEL).details.format == "gguf"
    once = client.chat(MODEL, MESSAGES, options=OPTIONS)
    streamed = list(client.chat(MODEL, MESSAGES, options=OPTIONS, stream=True))
    assert "".join(part.message.content for part in streamed) == once.message.content
    assert once.eval_count == streamed[-1].eval_count == 12
    assert client.generate(MODEL, "hi", options=OPTIONS).response == once.message.content
    assert len(client.embed(MODEL, ["a", "b"]).embeddings) == 2
    with pytest.raises(ollama.ResponseError, match="--models"):
        client.delete("x")


def test_the_client_gets_calls(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    ollama = pytest.importorskip("ollama", reason="the ollama package is not installed")
    script(monkeypatch, ANSWER)
    client = ollama.Client(host=server.url)
    message = client.chat(MODEL, MESSAGES, tools=TOOLS, options=OPTIONS).message
    assert message.thinking == "Let me see."
    assert message.tool_calls[0].function.arguments == {"city": "Oslo"}
