"""Whoever leaves has their request ended within a pass, at any stage; what others get is whole."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from server_rig import PROMPT, Server, serving

LONG = {"max_tokens": 400, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(n_ctx=1024, spec="mtp,ngram-mod", parallel=2) as made:
        yield made


def wait_until_idle(server: Server, seconds: float = 30) -> None:
    """Raises where something still runs after a watchdog's time."""
    end = time.monotonic() + seconds
    while not server.idle():
        assert time.monotonic() < end, "a slot is still busy"
        time.sleep(0.005)


def send(server: Server, body: str) -> socket.socket:
    """A raw request for a completion."""
    host, port = server.url.removeprefix("http://").split(":")
    found = socket.create_connection((host, int(port)))
    data = body.encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(data)}\r\n\r\n"
    found.sendall(head.encode() + data)
    return found


def body_of(prompt: list[int], stream: bool, n: int = 400) -> str:
    return (
        f'{{"prompt": {prompt}, "max_tokens": {n}, "temperature": 0, "ignore_eos": true, '
        f'"stream": {str(stream).lower()}}}'
    )


def expected_of(server: Server) -> str:
    found = server.post("/v1/completions", prompt=PROMPT, **{**LONG, "max_tokens": 16})
    return found["choices"][0]["text"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("stage", ["queued", "prompt", "decoding"])
def test_at_each_stage(server: Server, stage: str, stream: bool) -> None:
    expected = expected_of(server)
    others = [send(server, body_of([5, 6, 7], False)) for _ in range(2 if stage == "queued" else 0)]
    prompt = [9] * (900 if stage == "prompt" else 3)
    ours = send(server, body_of(prompt, stream, 100))
    wanted = {"queued": "queued", "prompt": "prompt", "decoding": "decoding"}[stage]
    end = time.monotonic() + 30
    while not any(r.stage.value == wanted for r in server.served.requests):
        if time.monotonic() > end or (stage == "prompt" and server.idle()):
            break
    ours.close()
    for other in others:
        other.close()
    wait_until_idle(server)
    assert expected_of(server) == expected


def test_many_abrupt_disconnects(server: Server) -> None:
    """At random times, with answers to others in between, which are whole."""
    expected, chance = expected_of(server), random.Random("disconnects")
    open_ones: list[socket.socket] = []
    for i in range(60):
        prompt = [chance.randrange(5, 500) for _ in range(chance.choice([1, 5, 300]))]
        open_ones.append(send(server, body_of(prompt, chance.random() < 0.5)))
        time.sleep(chance.random() * 0.02)
        while len(open_ones) > chance.randrange(5):
            open_ones.pop(chance.randrange(len(open_ones))).close()
        if i % 20 == 19:
            assert expected_of(server) == expected
    for each in open_ones:
        each.close()
    wait_until_idle(server)
    assert expected_of(server) == expected


def test_a_full_queue_says_when_to_come_back() -> None:
    with serving(n_ctx=1024, parallel=1, queue=1) as server:
        busy = [send(server, body_of([5], False)) for _ in range(2)]
        end = time.monotonic() + 30
        while server.served.busy < 2 and time.monotonic() < end:
            time.sleep(0.002)
        answer = server.client.post("/v1/completions", json={"prompt": PROMPT})
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["code"] == "overloaded"
        for each in busy:
            each.close()
        wait_until_idle(server)
        assert server.post("/v1/completions", prompt=PROMPT, max_tokens=1)["choices"]


def test_a_request_that_takes_too_long_is_a_504() -> None:
    with serving(n_ctx=4096, timeout=0.05) as server:
        body = {"prompt": [5] * 2000, **LONG, "max_tokens": 2000}
        error = server.post("/v1/completions", 504, **body)["error"]
        assert "0.05 s" in error["message"]
        events = server.stream("/v1/completions", **body)
        assert events[-1]["error"]["code"] == "timeout"
        wait_until_idle(server)


def test_shutdown_lets_running_requests_end() -> None:
    found: list[str] = []
    with serving(n_ctx=1024, parallel=1) as server:

        def ask() -> None:
            answer = server.client.post("/v1/completions", json={"prompt": PROMPT, **LONG})
            found.append(answer.json()["choices"][0]["finish_reason"])

        asking = threading.Thread(target=ask)
        asking.start()
        end = time.monotonic() + 30
        while not server.served.busy and time.monotonic() < end:
            time.sleep(0.002)
        server.begin_stop()
        asking.join(60)
    assert found == ["length"]
