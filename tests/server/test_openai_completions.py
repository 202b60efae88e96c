"""/v1/completions: what it gives is what the engine gives, streamed or not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from demo import demo
from riverrun.engine.prompts import LAST
from server_rig import GREEDY, PROMPT, Server, serving


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(spec="mtp,ngram-mod") as made:
        yield made


@pytest.fixture(scope="module")
def expected() -> str:
    """What the model itself says to the prompt."""
    generation = demo().generate(PROMPT, 24, temperature=0)
    return "".join(generation)


def test_it_is_what_the_model_says(server: Server, expected: str) -> None:
    found = server.post("/v1/completions", **GREEDY)
    choice = found["choices"][0]
    assert choice["text"] == expected
    assert choice["finish_reason"] == "length"
    assert found["usage"]["completion_tokens"] == 24
    assert found["usage"]["prompt_tokens"] == len(demo().tokenize(PROMPT))
    assert found["timings"]["predicted_n"] == 24


def test_a_stream_is_the_same_text(server: Server, expected: str) -> None:
    found = server.stream("/v1/completions", **GREEDY, stream_options={"include_usage": True})
    assert found[-1] == "[DONE]"
    assert "".join(e["choices"][0]["text"] for e in found[:-2]) == expected
    assert [e["choices"][0]["finish_reason"] for e in found[:-2]][-1] == "length"
    assert found[-3]["timings"]["predicted_n"] == 24
    assert found[-2]["usage"]["completion_tokens"] == 24


@pytest.mark.parametrize("speculative", [False, "mtp", "ngram-mod"])
def test_drafts_change_nothing(server: Server, expected: str, speculative: bool | str) -> None:
    found = server.post("/v1/completions", **GREEDY, speculative=speculative)
    assert found["choices"][0]["text"] == expected
    assert ("draft_n" in found["timings"]) == bool(speculative)


def test_pieces_say_whose_drafts_they_are(server: Server, expected: str) -> None:
    found = server.stream("/v1/completions", **GREEDY, return_drafted=True, speculative="mtp")
    pieces = [tuple(p) for e in found[:-1] for p in e["choices"][0]["drafted"]]
    assert "".join(text for text, _ in pieces) == expected
    accepted = found[-2]["timings"]["draft_n_accepted"]
    assert {name for _, name in pieces} == ({None, "mtp"} if accepted else {None})


def test_log_probabilities_are_the_engines(server: Server) -> None:
    plain = demo().generate(PROMPT, 24, temperature=0, logprobs=2)
    "".join(plain)
    wanted = plain.result.logprobs
    assert wanted is not None
    for body in (GREEDY, {**GREEDY, "speculative": False}):
        found = server.post("/v1/completions", **body, logprobs=2)["choices"][0]["logprobs"]
        assert found["tokens"] == [entry["text"] for entry in wanted]
        assert found["token_logprobs"] == [entry["logprob"] for entry in wanted]
        assert all(len(top) == 2 for top in found["top_logprobs"])
        streamed = server.stream("/v1/completions", **body, logprobs=2)[:-1]
        parts = [e["choices"][0]["logprobs"] for e in streamed]
        assert [t for part in parts for t in part["tokens"]] == found["tokens"]
        assert [x for part in parts for x in part["token_logprobs"]] == found["token_logprobs"]


def test_several_prompts_and_choices(server: Server, expected: str) -> None:
    body = {**GREEDY, "prompt": [PROMPT, "import os"], "n": 2}
    found = server.post("/v1/completions", **body)
    texts = [choice["text"] for choice in found["choices"]]
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2, 3]
    assert texts[:2] == [expected, expected]
    assert texts[2] == texts[3] != expected
    assert found["usage"]["completion_tokens"] == 96
    streamed = ["", "", "", ""]
    for event in server.stream("/v1/completions", **body)[:-1]:
        choice = event["choices"][0]
        streamed[choice["index"]] += choice["text"]
    assert streamed == texts


def test_seeds_repeat_and_choices_differ(server: Server) -> None:
    body = {"prompt": PROMPT, "max_tokens": 16, "temperature": 1.2, "seed": 7, "n": 3}
    first, second = (server.post("/v1/completions", **body) for _ in range(2))
    texts = [choice["text"] for choice in first["choices"]]
    assert texts == [choice["text"] for choice in second["choices"]]
    assert len(set(texts)) == 3


def test_the_prompt_is_echoed_once(server: Server, expected: str) -> None:
    whole = server.post("/v1/completions", **GREEDY, echo=True)["choices"][0]["text"]
    assert whole == PROMPT + expected
    streamed = server.stream("/v1/completions", **GREEDY, echo=True)[:-1]
    assert "".join(e["choices"][0]["text"] for e in streamed) == PROMPT + expected


def test_a_stop_ends_it_and_never_shows(server: Server, expected: str) -> None:
    stop = expected[5:12]
    body = {**GREEDY, "stop": [stop, "never there"]}
    choice = server.post("/v1/completions", **body)["choices"][0]
    assert choice["text"] == expected[: expected.index(stop)]
    assert choice["finish_reason"] == "stop"
    streamed = server.stream("/v1/completions", **body)[:-1]
    assert "".join(e["choices"][0]["text"] for e in streamed) == choice["text"]


def test_no_tokens_at_all(server: Server) -> None:
    found = server.post("/v1/completions", prompt=PROMPT, max_tokens=0)
    assert found["choices"][0]["text"] == ""
    assert found["choices"][0]["finish_reason"] == "length"


def test_banned_tokens_do_not_come(server: Server) -> None:
    first = demo().generate(PROMPT, 1, temperature=0)
    "".join(first)
    token = first.result.tokens[0]
    body = {**GREEDY, "logit_bias": {str(token): -100}, "return_tokens": True}
    assert token not in server.post("/v1/completions", **body)["choices"][0]["tokens"]


def test_a_grammar_is_followed(server: Server) -> None:
    pytest.importorskip("llguidance")
    body = {**GREEDY, "grammar": 'root ::= "yes" | "no"'}
    assert server.post("/v1/completions", **body)["choices"][0]["text"] in ("yes", "no")


def test_the_second_time_the_prompt_is_kept(server: Server, expected: str) -> None:
    body = {**GREEDY, "prompt": "# a prompt that is asked twice\n" * 9 + PROMPT}
    first, second = (server.post("/v1/completions", **body) for _ in range(2))
    # A few tokens before a prompt's end, where a recurrent state is kept.
    assert second["timings"]["cache_n"] == first["usage"]["prompt_tokens"] - LAST
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == second["timings"]["cache_n"]
    assert second["choices"][0]["text"] == first["choices"][0]["text"]
    third = server.post("/v1/completions", **body, cache_prompt=False)
    assert third["timings"]["cache_n"] == 0
    assert third["choices"][0]["text"] == first["choices"][0]["text"]


@pytest.mark.parametrize("path", ["/v1/completions", "/completion"])
def test_timings_with_each_part(server: Server, path: str) -> None:
    body = {"prompt": PROMPT, "n_predict": 8, "temperature": 0, "timings_per_token": True}
    found = [event for event in server.stream(path, **body) if event != "[DONE]"]
    counts = [event["timings"]["predicted_n"] for event in found]
    assert counts == sorted(counts) and counts[-1] == 8
