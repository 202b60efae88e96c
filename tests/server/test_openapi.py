"""The OpenAPI document has every endpoint; no body of any shape makes the server fail."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from riverrun.server.endpoint import Endpoint, scan_endpoints
from server_rig import GREEDY, Server, serving

BODIES = [made for made in scan_endpoints() if made.body is not None]
ROUNDS = 25
# What stands in for a value: of every type, and at the ends of ranges.
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 0.5, -1e308, 1e308, "", "x", "\0"),
    *("\ud83d\ude00", "\ud83d", [], {}, [[]], [None], [0], ["x"], {"": None}, {"type": "x"}, [{}]),
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(n_ctx=256, timeout=20, queue=1000) as made:
        yield made


def test_every_endpoint_is_described(server: Server) -> None:
    described = server.client.get("/openapi.json").json()
    found = {
        (path, method.upper()) for path, methods in described["paths"].items() for method in methods
    }
    for made in scan_endpoints():
        path = made.path.replace(":path}", "}")
        assert {(path, method) for method in made.methods} <= found
    names = set(described["components"]["schemas"])
    for reference in _references(described["paths"]) | _references(described["components"]):
        assert reference.removeprefix("#/components/schemas/") in names


def _references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(_references, value.values()))
    if isinstance(value, list):
        return set().union(*map(_references, value))
    return set()


def body_of(made: Endpoint, chance: random.Random) -> dict[str, Any]:
    """Fields of the endpoint's body, few with a value that does, most with odd ones."""
    assert made.body is not None
    plain = {
        "prompt": "x",
        "messages": [{"role": "user", "content": "x"}],
        "input": "x",
        "content": "x",
        "tokens": [5],
        "max_tokens": 2,
        "n_predict": 2,
        "max_output_tokens": 2,
        "options": {"num_predict": 2},
        "stream": chance.random() < 0.3,
    }
    fields = {field.alias or name for name, field in made.body.model_fields.items()}
    found = {name: value for name, value in plain.items() if name in fields}
    for name in chance.sample(sorted(fields), min(len(fields), chance.choice([1, 1, 2, 4]))):
        found[name] = chance.choice(ODD)
    return found


@pytest.mark.parametrize("made", BODIES, ids=lambda made: made.path)
def test_odd_bodies_are_answered(server: Server, made: Endpoint) -> None:
    chance = random.Random(made.path)
    path = made.path.replace("{slot}", "0")
    for _ in range(ROUNDS):
        body = body_of(made, chance)
        # What such a body may ask for is short.
        for name in ("max_tokens", "n_predict", "max_output_tokens", "max_completion_tokens"):
            if name in body and body[name] in (None, -1, 2**31, 2**63):
                body[name] = 2
        answer = server.client.post(path, content=json.dumps(body))
        assert answer.status_code < 500 or answer.status_code == 504, (body, answer.text)
    assert server.post("/v1/completions", **{**GREEDY, "max_tokens": 2})["choices"]


@pytest.mark.full
def test_schemathesis(server: Server) -> None:
    pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    words = ["run", f"{server.url}/openapi.json", "--checks", "not_a_server_error"]
    more = ["--max-examples", "60", "--seed", "1"]
    code = "from schemathesis.cli import schemathesis; schemathesis()"
    found = subprocess.run(
        [sys.executable, "-c", code, *words, *more], capture_output=True, text=True
    )
    assert found.returncode == 0, found.stdout[-4000:]
    assert json.loads(server.client.get("/health").text) == {"status": "ok"}
