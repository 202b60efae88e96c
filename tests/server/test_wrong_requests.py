"""What is wrong with a request is answered, names what it is about, and ends nothing else."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from riverrun.graph.errors import RequestError
from riverrun.server.options import ServerOptions
from riverrun.server.safety import Safety
from server_rig import GREEDY, PROMPT, Server, serving
from starlette.requests import Request

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(max_body=0.05, api_keys=("secret",)) as made:
        made.client.headers["Authorization"] = "Bearer secret"
        yield made


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "unknown-field": (TEXT, {**GREEDY, "temprature": 1}, "temperature"),
    "refused-field": (TEXT, {**GREEDY, "mirostat": 2}, "mirostat"),
    "no-prompt": (TEXT, {"max_tokens": 4}, "prompt"),
    "empty-prompt": (TEXT, {"prompt": []}, "prompt"),
    "bad-token": (TEXT, {"prompt": [10**9]}, "token"),
    "negative-token": (TEXT, {"prompt": [-1]}, "token"),
    "temperature": (TEXT, {**GREEDY, "temperature": -1}, "temperature"),
    "top-p": (TEXT, {**GREEDY, "top_p": 2}, "top_p"),
    "nan": (TEXT, {**GREEDY, "top_k": "x"}, "top_k"),
    "max-tokens": (TEXT, {**GREEDY, "max_tokens": -7}, "max_tokens"),
    "bias": (TEXT, {**GREEDY, "logit_bias": {"x": 1}}, "logit_bias"),
    "bias-token": (TEXT, {**GREEDY, "logit_bias": {"99999999": 1}}, "logit_bias"),
    "stops": (TEXT, {**GREEDY, "stop": ["x"] * 65}, "stop"),
    "grammar": (TEXT, {**GREEDY, "grammar": "root ::= ("}, "grammar"),
    "grammar-left-recursion": (TEXT, {**GREEDY, "grammar": 'root ::= root "a"'}, "grammar"),
    "drafters": (TEXT, {**GREEDY, "speculative": "mtp"}, "--spec"),
    "best-of": (TEXT, {**GREEDY, "best_of": 3}, "best_of"),
    "no-messages": (CHAT, {"messages": []}, "messages"),
    "no-role": (CHAT, {"messages": [{"content": "hi"}]}, "role"),
    "null-content": (CHAT, {"messages": [{"role": "user", "content": None}]}, "0].content"),
    "no-content": (CHAT, {"messages": [{"role": "system"}, *MESSAGES]}, "0].content"),
    "image": (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image"),
    "top-logprobs": (CHAT, {"messages": MESSAGES, "top_logprobs": 2}, "logprobs"),
    "format": (CHAT, {"messages": MESSAGES, "response_format": {"type": "x"}}, "response_format"),
    "choice": (CHAT, {"messages": MESSAGES, "tool_choice": "required"}, "tool_choice"),
    "tools": (CHAT, {"messages": MESSAGES, "tools": [{"type": "browser"}]}, "tools"),
    "tokenize": ("/tokenize", {}, "content"),
    "detokenize": ("/detokenize", {"tokens": [99999999]}, "token"),
    "embeddings": ("/v1/embeddings", {"input": []}, "text"),
    "dimensions": ("/v1/embeddings", {"input": "x", "dimensions": 99999}, "dimensions"),
}


@pytest.mark.parametrize("name", WRONG)
def test_it_is_a_400_that_names_it(server: Server, name: str) -> None:
    path, body, word = WRONG[name]
    error = server.post(path, 400, **body)["error"]
    assert word in error["message"]
    assert error["type"] == "invalid_request_error"


def test_a_prompt_longer_than_the_context_tells_both_numbers(server: Server) -> None:
    error = server.post(TEXT, 400, prompt=[5] * 600)["error"]
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (600, 512)
    assert error["code"] == "context_length_exceeded"
    assert "600" in error["message"] and "512" in error["message"]


def test_an_unknown_model_is_a_404(server: Server) -> None:
    error = server.post(TEXT, 404, **GREEDY, model="gpt-9")["error"]
    assert error["code"] == "model_not_found"
    assert "riverrun-demo" in error["message"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"x"', b"\xff\xfe{}", b'{"prompt": "\xff"}', b"nul", b"{" * 20000],
    ids=["empty", "cut", "list", "text", "not-utf8", "not-utf8-inside", "word", "deep"],
)
def test_what_is_no_json_object_is_a_400(server: Server, body: bytes) -> None:
    answer = server.client.post(TEXT, content=body)
    assert answer.status_code == 400
    assert "JSON" in answer.json()["error"]["message"]


def test_deep_json_is_a_400(server: Server) -> None:
    body = b'{"prompt": "x", "json_schema": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001
    assert server.client.post(TEXT, content=body).status_code == 400


def test_a_body_over_the_limit_is_a_413(server: Server) -> None:
    answer = server.client.post(TEXT, json={"prompt": "x" * 100_000})
    assert answer.status_code == 413
    assert "--max-body" in answer.json()["error"]["message"]

    def parts() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 1000

    assert server.client.post(TEXT, content=parts()).status_code == 413


@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
def test_a_client_that_sends_before_it_reads_is_told(server: Server, chunked: bool) -> None:
    """Its connection is not reset while more of the body comes than sockets hold."""
    host, port = server.url.removeprefix("http://").split(":")
    size = 32 << 20
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
    head = f"POST {TEXT} HTTP/1.1\r\nHost: {host}\r\nx-api-key: secret\r\n{length}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=60) as ours:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (size, b" " * size) if chunked else b" " * size
        ours.sendall(head.encode() + body)
        answer = b"".join(iter(lambda: ours.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 413") and b"--max-body" in answer


@pytest.mark.parametrize("more", [b"a", b"a\r\nX: "], ids=["line", "lines"])
def test_a_head_without_end_ends_its_connection(server: Server, more: bytes) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as ours:
        ours.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
        with pytest.raises(ConnectionError):
            for _ in range(256):
                ours.sendall(more * (1 << 17))


def test_a_long_head_is_read(server: Server) -> None:
    headers = {f"X-{i}": "a" * 1000 for i in range(60)}
    assert server.client.get("/health", headers=headers).status_code == 200


@pytest.mark.parametrize("key", ["", "Bearer wrong", "Basic secret", "Bearer sécret"])
def test_a_wrong_key_is_a_401(server: Server, key: str) -> None:
    headers = {"Authorization": key.encode()}
    answer = server.client.post(TEXT, json=GREEDY, headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"


def test_keys_of_either_kind_are_taken(server: Server) -> None:
    for headers in (
        {"x-api-key": "secret", "Authorization": ""},
        {"Authorization": "bearer secret"},
    ):
        body = {**GREEDY, "max_tokens": 1}
        assert server.client.post(TEXT, json=body, headers=headers).status_code == 200
    assert server.client.get("/health", headers={"Authorization": ""}).status_code == 200


def test_no_key_is_empty() -> None:
    """It would be shown by whoever shows none. White space around keys is not part of them."""
    for wrong in ("", " "):
        with pytest.raises(RequestError, match="not empty"):
            ServerOptions(api_keys=("a", wrong))
    safety = Safety(ServerOptions(api_keys=("secret\n",)))
    scope = {"type": "http", "headers": [(b"authorization", b"Bearer secret")]}
    safety.check(Request(scope), public=False)


@pytest.mark.parametrize(
    "headers",
    [{"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "null"}],
    ids=["host", "origin", "null"],
)
def test_pages_from_elsewhere_are_refused(server: Server, headers: dict[str, str]) -> None:
    for path in ("/health", "/v1/models"):
        assert server.client.get(path, headers=headers).status_code == 403


def test_its_own_page_is_not(server: Server) -> None:
    headers = {"Origin": server.url}
    assert server.client.get("/v1/models", headers=headers).status_code == 200


def test_other_paths_and_methods(server: Server) -> None:
    missing = server.client.get("/v1/nothing")
    assert missing.status_code == 404
    assert "/v1/nothing" in missing.json()["error"]["message"]
    wrong = server.client.get(TEXT)
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "POST"


def test_a_schema_that_cannot_be_enforced_is_a_400(server: Server) -> None:
    pytest.importorskip("llguidance")
    schema: Any = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}
    deep: Any = {"type": "object"}
    for _ in range(300):
        deep = {"type": "object", "properties": {"a": deep}}
    for wrong in (schema, {"$ref": "#"}, {"type": "nothing"}, {"$ref": "http://x/y"}, deep):
        answer = server.client.post(TEXT, json={**GREEDY, "json_schema": wrong})
        assert answer.status_code == 400, answer.text
        assert "json_schema" in answer.json()["error"]["message"] or "JSON" in answer.text


def test_bounds_beyond_all_sense_are_held_to_or_refused(server: Server) -> None:
    pytest.importorskip("llguidance")
    for bound in ("maxItems", "minItems"):
        schema: Any = {"type": "array", "items": {"type": "integer"}, bound: 2**63}
        body = {**GREEDY, "max_tokens": 8, "json_schema": schema}
        answer = server.client.post(TEXT, json=body)
        assert answer.status_code in (200, 400)
        if answer.status_code == 200:
            assert answer.json()["choices"][0]["text"].lstrip().startswith("[")


def test_a_failing_template_is_a_400(server: Server) -> None:
    body = {"messages": MESSAGES, "chat_template": "{{ messages[7].x.y }}"}
    error = server.post(CHAT, 400, **body)["error"]
    assert "chat_template" in error["message"]


def test_after_all_that_it_answers(server: Server) -> None:
    assert server.post(TEXT, prompt=PROMPT, max_tokens=1)["choices"]
    assert server.idle()
