"""Texts far beyond the context are refused, or cut, by their beginning alone."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from riverrun.models.tokenizer import Tokenizer
from riverrun.server import long_texts
from riverrun.server.filling import fill_in
from server_rig import Server, serving

N_CTX = 512
FAR = "word " * 200_000
DASHES = 64  # in one token


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(n_ctx=N_CTX) as made:
        yield made


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Characters of each text that is encoded."""
    monkeypatch.setattr(long_texts, "LEAST", DASHES)
    before, lengths = Tokenizer.encode, list[int]()

    def encode(self: Tokenizer, text: str, *how: Any, **named: Any) -> list[int]:
        lengths.append(len(text))
        return before(self, text, *how, **named)

    monkeypatch.setattr(Tokenizer, "encode", encode)
    return lengths


MESSAGES = [{"role": "user", "content": FAR}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": FAR},
    "/completion": {"prompt": [5, FAR]},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 5},
    "/v1/responses": {"input": FAR},
    "/v1/embeddings": {"input": ["short", FAR]},
    "/api/chat": {"messages": MESSAGES},
    "/api/generate": {"prompt": FAR, "raw": True},
}


@pytest.mark.parametrize("path", BODIES)
def test_they_are_refused(server: Server, encoded: list[int], path: str) -> None:
    error = server.post(path, 400, **BODIES[path])["error"]
    message = error if isinstance(error, str) else error["message"]
    assert "at least" in message and f"the context {N_CTX}" in message
    assert max(encoded) <= 8 * N_CTX
    if path.startswith("/v1/c"):
        assert error["code"] == "context_length_exceeded"
        assert 2 * N_CTX < error["n_prompt_tokens"] < 200_000


def test_embeddings_that_are_cut_anyway(server: Server, encoded: list[int]) -> None:
    found = server.post("/api/embed", input=FAR)
    assert found["prompt_eval_count"] == N_CTX
    assert max(encoded) <= 8 * N_CTX


def test_many_characters_in_few_tokens_fit(server: Server, encoded: list[int]) -> None:
    fits, longer = "-" * (DASHES * 500), "-" * (DASHES * 600)
    answer = server.post("/v1/completions", prompt=fits, max_tokens=1)
    assert answer["usage"]["prompt_tokens"] == 500
    error = server.post("/v1/completions", 400, prompt=longer)["error"]
    assert error["n_prompt_tokens"] == 600 and "has 600 tokens" in error["message"]


def test_counting_and_tokenizing_take_any_length(server: Server) -> None:
    text = "a " * 3000
    assert len(server.post("/tokenize", content=text)["tokens"]) > 3000
    messages = [{"role": "user", "content": text}]
    assert server.post("/v1/messages/count_tokens", messages=messages)["input_tokens"] > 3000


def test_of_a_file_around_a_hole_only_what_is_near_is_encoded() -> None:
    lengths = list[int]()

    class Bytes:
        """A token for each character."""

        fim_ids = {"pre": 1, "suf": 2, "mid": 3}
        add_bos, bos_id = False, None

        def encode(self, text: str, add_special: bool) -> list[int]:
            lengths.append(len(text))
            return [ord(char) for char in text]

    served: Any = SimpleNamespace(n_ctx=400, name="one", model=SimpleNamespace(tokenizer=Bytes()))
    before, after = "ab" * 500_000, "cd" * 500_000
    found = fill_in(served, before, after)
    assert found == [1, *map(ord, before[-219:]), 2, *map(ord, after[:73]), 3]
    assert max(lengths) <= long_texts.LEAST
