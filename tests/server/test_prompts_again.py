"""Prompts that share a beginning with earlier ones: kept as far as can be, with the answers of cold
runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from demo import demo
from server_rig import Server, serving

TEXT = "\n".join(f"def f{i}(a, b):\n    return a * {i} + b" for i in range(40))


@pytest.fixture(scope="module", params=[None, "mtp"], ids=["plain", "mtp"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with serving(n_ctx=2048, spec=request.param, parallel=2) as made:
        yield made


def ask(server: Server, prompt: list[int], **more: Any) -> Any:
    body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, **more}
    return server.post("/v1/completions", **body)


def test_the_same_then_others(server: Server) -> None:
    whole = demo().tokenize(TEXT)
    third = len(whole) // 3
    prompts = [
        whole,
        whole,
        [*whole[:-1], 7],
        [*whole[:third], *range(5, 200)],
        [*whole, *range(300, 340)],
    ]
    for i, prompt in enumerate(prompts):
        found = ask(server, prompt)
        timings = found["timings"]
        assert timings["cache_n"] + timings["prompt_n"] == len(prompt)
        cold = ask(server, prompt, cache_prompt=False)
        assert cold["timings"]["cache_n"] == 0
        assert found["choices"] == cold["choices"]
        if i in (1, 2):
            assert timings["prompt_n"] <= 64


def test_two_conversations_in_turn(server: Server) -> None:
    """Each turn evaluates what is new, and no more than a little beside."""
    texts = [demo().tokenize(TEXT), demo().tokenize(TEXT[::-1])[:600]]
    for turn in range(4):
        for text in texts:
            new = list(range(400 + turn, 480 + turn))
            text += new
            found = ask(server, text, return_tokens=True)
            if turn:
                assert found["timings"]["prompt_n"] <= len(new) + 12 + 64
            text += found["choices"][0]["tokens"]
