"""Whoever leaves an answer of any interface in the middle has its request ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from riverrun.engine.request import Request
from server_rig import PROMPT, Server, awaited, send, serving

CODE = "def f(x):\n    return x\n\n" * 20
ENDLESS = {"temperature": 0, "ignore_eos": True}
BEGUN = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": CODE}]
BODIES: dict[str, dict[str, Any]] = {
    "/api/generate": {"prompt": PROMPT, "raw": True, "options": ENDLESS},
    "/api/chat": {"messages": BEGUN[:1], "options": ENDLESS},
    "/v1/messages": {"messages": BEGUN, "max_tokens": 4000, "temperature": 0},
    "/v1/responses": {"input": PROMPT, **ENDLESS},
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(n_ctx=4096, parallel=1) as made:
        yield made


def decoding(server: Server) -> Request:
    return awaited(lambda: next((r for r in server.served.requests if r.tokens), None))


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("path", BODIES)
def test_its_request_is_cancelled(server: Server, path: str, stream: bool) -> None:
    ours = send(server, path, {**BODIES[path], "stream": stream})
    request = decoding(server)
    ours.close()
    awaited(lambda: request.result)
    assert request.result is not None
    assert request.result.finish_reason == "cancelled"
    awaited(server.idle)
