"""Whoever leaves has their request ended before another pass, at any stage; what others get is
whole."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from held_engine import HeldEngine
from server_rig import PROMPT, Server, awaited, send, serving

LONG = {"max_tokens": 400, "temperature": 0, "ignore_eos": True}
TEXT = "/v1/completions"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(n_ctx=1024, spec="mtp,ngram-mod", parallel=2, kind=HeldEngine) as made:
        yield made


def ask(server: Server, prompt: list[int], stream: bool, n: int = 400) -> socket.socket:
    return send(server, TEXT, {**LONG, "prompt": prompt, "max_tokens": n, "stream": stream})


class Crowd:
    """Clients that ask for long answers, and leave."""

    def __init__(self, server: Server) -> None:
        self.server, self.connections = server, list[socket.socket]()
        self.asked, self.before = 0, answered(server)

    def ask(self, prompt: list[int], stream: bool) -> None:
        self.asked += 1
        self.connections.append(ask(self.server, prompt, stream))

    def leave(self) -> None:
        """All that are left close their connections, while the engine stands in the middle of a
        pass. When the server has seen it, the step that the pass is part of goes on to its end, and
        the next one begins with the end of all requests: whatever stage they were at, no further
        pass begins. Nothing but kept texts has pages then."""
        server, engine = self.server, held(self.server)
        while self.connections:
            self.connections.pop().close()
        awaited(lambda: answered(server) == self.before + self.asked)
        assert all(request.cancelled for request in server.served.requests)
        steps = engine.steps
        engine.go_on()
        awaited(server.idle)
        assert engine.steps - steps <= 1
        assert engine.passes_of[steps + 1 :] == [0] * (engine.steps - steps)
        full = engine.occupancy()
        assert (full.active, full.queued, full.pages_free) == (0, 0, full.pages)


def answered(server: Server) -> int:
    """Completions that the server is done with, be it because the client has gone."""
    lines = server.client.get("/metrics").text.splitlines()
    found = [line for line in lines if "_total{" in line and f'path="{TEXT}"' in line]
    return sum(int(float(line.split()[-1])) for line in found)


def held(server: Server) -> HeldEngine:
    engine = server.served.engine
    assert isinstance(engine, HeldEngine)
    return engine


def expected_of(server: Server) -> str:
    found = server.post("/completion", prompt=PROMPT, **{**LONG, "max_tokens": 16})
    return found["content"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("stage", ["queued", "prompt", "decoding"])
def test_at_each_stage(server: Server, stage: str, stream: bool) -> None:
    expected, engine, crowd = expected_of(server), held(server), Crowd(server)
    engine.hold(3 if stage == "decoding" else 0)  # behind the prompt's pass, and a round or two
    crowd.ask([9] * (900 if stage == "prompt" else 3), stream)
    engine.stand()
    if stage == "queued":
        crowd.ask([5, 6, 7], stream)
        awaited(lambda: server.served.busy == 2)
    assert stage in [request.stage.value for request in server.served.requests]
    crowd.leave()
    assert expected_of(server) == expected


def test_many_abrupt_disconnects(server: Server) -> None:
    """At random times, with answers to others in between, which are whole."""
    expected, chance, crowd = expected_of(server), random.Random("disconnects"), Crowd(server)
    for i in range(200):
        prompt = [chance.randrange(5, 500) for _ in range(chance.choice([1, 5, 300]))]
        crowd.ask(prompt, chance.random() < 0.5)
        time.sleep(chance.random() * 0.01)
        while len(crowd.connections) > chance.randrange(5):
            crowd.connections.pop(chance.randrange(len(crowd.connections))).close()
        if i % 50 == 49:
            held(server).hold()
            crowd.ask([5, 6, 7], True)
            held(server).stand()
            crowd.leave()
            assert expected_of(server) == expected


def test_a_full_queue_says_when_to_come_back() -> None:
    with serving(n_ctx=1024, parallel=1, queue=1) as server:
        busy = [ask(server, [5], False) for _ in range(2)]
        awaited(lambda: server.served.busy == 2)
        answer = server.client.post("/v1/completions", json={"prompt": PROMPT})
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["code"] == "overloaded"
        for each in busy:
            each.close()
        awaited(server.idle)
        assert server.post("/v1/completions", prompt=PROMPT, max_tokens=1)["choices"]


def test_a_request_that_takes_too_long_is_a_504() -> None:
    with serving(n_ctx=4096, timeout=0.05) as server:
        body = {"prompt": [5] * 2000, **LONG, "max_tokens": 2000}
        error = server.post("/v1/completions", 504, **body)["error"]
        assert "0.05 s" in error["message"]
        events = server.stream("/v1/completions", **body)
        assert events[-1]["error"]["code"] == "timeout"
        awaited(server.idle)


def test_shutdown_lets_running_requests_end() -> None:
    found: list[str] = []
    with serving(n_ctx=1024, parallel=1) as server:

        def ask() -> None:
            answer = server.client.post("/v1/completions", json={"prompt": PROMPT, **LONG})
            found.append(answer.json()["choices"][0]["finish_reason"])

        asking = threading.Thread(target=ask)
        asking.start()
        awaited(lambda: server.served.busy)
        server.begin_stop()
        asking.join(60)
    assert found == ["length"]
