"""What is written to connections: JSON that is valid whatever is in it, and one write for all that
a pass brings a request."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Iterator
from types import MappingProxyType
from typing import Any

import pytest
from riverrun.server.app import make_app
from riverrun.server.http import encode
from riverrun.server.served import Part, Running
from scripted import script
from server_rig import PROMPT, Server, serving

HI = [{"role": "user", "content": "hi"}]
# Bodies of streams, and the events of each that come before any text or behind all of it.
STREAMS: dict[str, tuple[dict[str, Any], int]] = {
    "/v1/completions": ({"prompt": PROMPT, "max_tokens": 12}, 1),
    "/v1/chat/completions": ({"messages": HI, "max_tokens": 12}, 2),
    "/v1/responses": ({"input": "hi", "max_output_tokens": 12}, 3),
    "/v1/messages": ({"messages": HI, "max_tokens": 12}, 4),
    "/api/chat": ({"messages": HI, "options": {"num_predict": 12}}, 0),
    "/completion": ({"prompt": PROMPT, "n_predict": 12}, 0),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


async def written(server: Server, path: str, body: dict[str, Any]) -> list[bytes]:
    """The bodies' parts that an answer is sent in."""
    given = [{"type": "http.request", "body": json.dumps({**body, "stream": True}).encode()}]
    sent = list[Any]()

    async def receive() -> Any:
        if given:
            return given.pop()
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        **{"type": "http", "method": "POST", "path": path, "query_string": b"", "root_path": ""},
        **{"scheme": "http", "http_version": "1.1", "server": ("127.0.0.1", 80)},
        "headers": [(b"host", b"127.0.0.1")],
    }
    await make_app(server.service, opened=True)(scope, receive, send)
    assert sent[0]["status"] == 200
    return [message["body"] for message in sent[1:] if message["body"]]


@pytest.mark.parametrize("path", STREAMS)
def test_one_write_a_part(server: Server, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Of which answers with reasoning and calls make several events."""
    if path not in ("/v1/completions", "/completion"):
        script(monkeypatch)
    parts, read = list[Part](), Running.parts

    async def noted(self: Running) -> AsyncIterator[Part]:
        async for part in read(self):
            parts.append(part)
            yield part

    monkeypatch.setattr(Running, "parts", noted)
    body, others = STREAMS[path]
    assert server.loop is not None
    done = asyncio.run_coroutine_threadsafe(written(server, path, body), server.loop)
    bodies = done.result(60)
    assert 1 <= len(bodies) <= len(parts) + others
    if path == "/v1/responses":
        assert any(body.count(b"\n\n") > 1 for body in bodies)


@pytest.mark.parametrize(
    "value, text",
    [
        ({"a": [1, 2.5, None, True], "b": {}}, '{"a":[1,2.5,null,true],"b":{}}'),
        ([math.nan, math.inf, -math.inf, 1.0], "[null,null,null,1.0]"),
        ("ü🎈\"\\\n\x00\x7f", '"ü🎈\\"\\\\\\n\\u0000\x7f"'),
        ({"a": ["x\ud800y", math.nan]}, '{"a":["x\ufffdy",null]}'),
        ({"\udc00": "\ud83c\udf88"}, '{"\ufffd":"🎈"}'),
        (MappingProxyType({"a": (1, 2)}), '{"a":[1,2]}'),
    ],
    ids=["plain", "numbers", "text", "half", "half-key", "mapping"],
)  # fmt: skip
def test_json_is_valid(value: Any, text: str) -> None:
    assert encode(value) == text.encode()
    json.loads(encode(value))
