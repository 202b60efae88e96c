"""Requests at once: nothing of one shows in another, and each gets what it gets alone."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from server_rig import Server, serving

ROUNDS = 3
CANARIES = ("walrus", "turnip", "bagpipe", "lantern", "pelican", "mustard", "anvil", "teapot")


@pytest.fixture(scope="module", params=["plain", "drafts"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    spec = "mtp,ngram-mod" if request.param == "drafts" else None
    with serving(n_ctx=1024, parallel=4, spec=spec) as made:
        yield made


def body_of(chance: random.Random, word: str) -> dict[str, Any]:
    """A prompt of any length around a word, and a number of tokens."""
    line = f"{word} = '{word}'  # {word}\n"
    return {
        "prompt": line * chance.choice([1, 3, 12, 40]) + f"print({word[:3]}",
        "max_tokens": chance.randrange(4, 40),
        "temperature": chance.choice([0, 0.9]),
        "seed": chance.randrange(1000),
    }


def ask(server: Server, body: dict[str, Any]) -> str:
    return server.post("/v1/completions", **body)["choices"][0]["text"]


def leave(server: Server, body: dict[str, Any], pieces: int) -> None:
    """Read some pieces of a stream, and close the connection."""
    with (
        httpx.Client(base_url=server.url) as client,
        client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer,
    ):
        for i, _ in enumerate(answer.iter_lines()):
            if i >= 2 * pieces:
                break


@pytest.mark.parametrize("n", [4, 8])
def test_company_changes_nothing(server: Server, n: int) -> None:
    chance = random.Random(f"company {n}")
    for _ in range(ROUNDS):
        words = CANARIES[:n]
        bodies = {word: body_of(chance, word) for word in words}
        left = chance.choice(words)
        with ThreadPoolExecutor(n) as pool:
            others = {w: pool.submit(ask, server, b) for w, b in bodies.items() if w != left}
            pool.submit(leave, server, bodies[left], chance.randrange(8))
            found = {word: future.result() for word, future in others.items()}
        for word, text in found.items():
            assert text == ask(server, {**bodies[word], "cache_prompt": False}), word
            assert not [w for w in words if w != word and w in text], text


def test_ten_alike_are_equal(server: Server) -> None:
    body = {"prompt": "def add(a, b):", "max_tokens": 20, "temperature": 0.8, "seed": 3}
    found = list[str]()
    threads = [threading.Thread(target=lambda: found.append(ask(server, body))) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 10
    assert len(set(found)) == 1
