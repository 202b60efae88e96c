"""Streams that say something where nothing is to be said."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from riverrun.server.endpoints import anthropic
from riverrun.server.http import Stream, send_stream
from riverrun.server.served import Part, Running
from server_rig import events, serving

PING = b"ping"


def bodies(sent: list[Any]) -> list[bytes]:
    return [message["body"] for message in sent if message["type"] == "http.response.body"]


def test_pings_come_until_there_is_something_else() -> None:
    """The stream goes on when three pings were sent: without them it never ends."""
    sent = list[Any]()
    pinged = asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message)
        if bodies(sent).count(PING) % 3 == 0 and message.get("body") == PING:
            pinged.set()

    async def parts() -> AsyncIterator[bytes]:
        for part in (b"a", b"b"):
            yield part
            await pinged.wait()
            pinged.clear()
        yield b"c"

    stream = Stream(parts(), lambda error: b"failed", ping=PING, quiet=0.001)
    asyncio.run(asyncio.wait_for(send_stream(send, stream), 60))
    assert sent[0]["type"] == "http.response.start"
    assert bodies(sent) == [b"a", PING, PING, PING, b"b", PING, PING, PING, b"c", b""]


@pytest.mark.parametrize("ends", ["well", "in an error", "because the client has gone"])
def test_no_ping_comes_behind_the_end(ends: str) -> None:
    sent, closed = list[Any](), list[bool]()

    async def send(message: Any) -> None:
        sent.append(message)
        await asyncio.sleep(0)
        if ends.startswith("because") and message.get("body"):
            raise OSError("gone")

    async def parts() -> AsyncIterator[bytes]:
        try:
            yield b"a"
            if ends == "in an error":
                raise RuntimeError("broken")
        finally:
            closed.append(True)

    async def run() -> None:
        stream = Stream(parts(), lambda error: b"failed", ping=PING, quiet=0)
        try:
            await send_stream(send, stream)
        except OSError:
            assert ends.startswith("because")
        n = len(sent)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(sent) == n and len(asyncio.all_tasks()) == 1

    asyncio.run(run())
    assert closed == [True]
    last = [body for body in bodies(sent) if body != PING][-1]
    assert last == (b"a" if ends.startswith("because") else b"")


def test_messages_ping_while_the_model_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins to speak when the client has seen four pings."""
    heard, parts = threading.Event(), Running.parts

    async def held(self: Running) -> AsyncIterator[Part]:
        await asyncio.to_thread(heard.wait, 60)
        async for part in parts(self):
            yield part

    monkeypatch.setattr(Running, "parts", held)
    monkeypatch.setattr(anthropic, "Stream", partial(Stream, quiet=0.001))
    body = {"max_tokens": 4, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    text = ""
    with serving() as server, server.client.stream("POST", "/v1/messages", json=body) as answer:
        for piece in answer.iter_text():
            text += piece
            if text.count("event: ping\n") > 3:
                heard.set()
    kinds = [event["type"] for event in events(text)]
    assert kinds[:5] == ["message_start", *["ping"] * 4]
    said = [kind for kind in kinds if kind != "ping"]
    assert said[1] == "content_block_start" and said[-1] == "message_stop"
