"""Generation: what comes out, what ends it, and that pieces, text and ids agree."""

from __future__ import annotations

import pytest
from demo import PROMPTS, demo
from golden_rig import MARGINS
from riverrun.graph.errors import RequestError

PROMPT = PROMPTS["p17"]["text"]
GREEDY = {"temperature": 0}


def test_greedy_text_is_the_golden_one() -> None:
    p = PROMPTS["p200"]
    result = demo().generate(p["ids"], 64, ignore_eos=True, **GREEDY).result
    sure = next((i for i, m in enumerate(p["greedy_margin"]) if m < MARGINS["q8_0"]), 64)
    assert sure > 30
    assert result.tokens[:sure] == p["greedy"][:sure]
    assert result.finish_reason == "length" and result.prompt_tokens == 200


def test_pieces_joined_are_the_text() -> None:
    generation = demo().generate(PROMPT, 40, **GREEDY)
    pieces = list(generation)
    result = generation.result
    assert len(pieces) > 10 and "".join(pieces) == result.text
    assert demo().tokenizer.decode(result.tokens) == result.text


@pytest.mark.parametrize("n", [0, 1, 5])
def test_token_limit(n: int) -> None:
    result = demo().generate(PROMPT, n, ignore_eos=True, **GREEDY).result
    assert len(result.tokens) == n and result.finish_reason == "length"
    assert result.timings["predicted_n"] == n


@pytest.mark.parametrize("n_ctx", [18, 30])
def test_a_full_context_ends_with_length(n_ctx: int) -> None:
    generation = demo().generate(PROMPT, -1, n_ctx=n_ctx, ignore_eos=True, **GREEDY)
    result = generation.result
    assert result.finish_reason == "length"
    # The last token is sampled but needs no room: it is not evaluated.
    assert len(result.tokens) == n_ctx - 17 + 1
    session = generation.session
    assert session.length() == session.sequences.evaluated() == n_ctx
    session.settle()
    other = demo().session(n_ctx)
    other.restore(session.save())
    assert other.tokens() == session.tokens()


def test_a_prompt_that_fills_the_context_gives_one_token() -> None:
    result = demo().generate(PROMPT, -1, n_ctx=17, **GREEDY).result
    assert len(result.tokens) == 1 and result.finish_reason == "length"


@pytest.mark.parametrize("n_ctx", [1, 16])
def test_too_long_a_prompt_is_refused(n_ctx: int) -> None:
    with pytest.raises(RequestError, match=f"17 tokens do not fit in a context of {n_ctx}"):
        demo().generate(PROMPT, 4, n_ctx=n_ctx)


@pytest.mark.parametrize("stop", ["return", "arr[0]\n    else", "\n\n", "zzz"])
def test_stop_texts_never_show(stop: str) -> None:
    plain = demo().generate(PROMPT, 60, ignore_eos=True, **GREEDY).result
    generation = demo().generate(PROMPT, 60, ignore_eos=True, stop=stop, **GREEDY)
    pieces = list(generation)
    result = generation.result
    assert "".join(pieces) == result.text == plain.text.split(stop)[0]
    assert result.finish_reason == ("stop" if stop in plain.text else "length")
    assert result.tokens == plain.tokens[: len(result.tokens)]


def test_end_token_is_not_part_of_the_result() -> None:
    model = demo()
    end = next(iter(model.tokenizer.eog_ids))
    result = model.generate(PROMPT, 8, logit_bias={end: 1e4}, **GREEDY).result
    assert (result.tokens, result.text, result.finish_reason) == ([], "", "stop")
    kept = model.generate(PROMPT, 3, ignore_eos=True, logit_bias={end: 1e4}, **GREEDY).result
    assert kept.tokens == [end] * 3 and kept.finish_reason == "length"


def test_seeds_repeat_and_differ() -> None:
    def run(seed: int) -> list[int]:
        generation = demo().generate(PROMPT, 24, seed=seed, temperature=1.0, ignore_eos=True)
        return generation.result.tokens

    assert run(1) == run(1)
    assert len({tuple(run(s)) for s in (1, 2, 3)}) == 3


def test_a_session_is_continued() -> None:
    model = demo()
    whole = model.generate(PROMPT, 20, ignore_eos=True, **GREEDY).result
    session = model.session(n_ctx=512)
    first = model.generate(PROMPT, 8, session=session, ignore_eos=True, **GREEDY).result
    # The last sampled token has not been evaluated yet: it runs in front of the next prompt.
    more = whole.tokens[8:11]
    rest = model.generate(more, 9, session=session, ignore_eos=True, **GREEDY).result
    assert first.tokens + more + rest.tokens == whole.tokens
    assert session.tokens() == model.tokenize(PROMPT) + whole.tokens


@pytest.mark.parametrize(
    "arguments,message",
    [
        ({"max_tokens": -2}, "max_tokens should be -1, 0 or more"),
        ({"temperature": -0.5}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"stop": ""}, "stop"),
        ({"n_ctx": 0}, "1 or more"),
    ],
    ids=str,
)
def test_bad_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        demo().generate(PROMPT, **arguments)  # type: ignore[arg-type]


def test_empty_prompt_needs_a_token() -> None:
    with pytest.raises(RequestError, match="no tokens"):
        demo().generate("", 4)


def test_timings_divide_by_one_less() -> None:
    t = demo().generate(PROMPT, 9, ignore_eos=True, **GREEDY).result.timings
    assert t["prompt_n"] == 17 and t["predicted_n"] == 9 and t["cache_n"] == 0
    assert t["predicted_per_token_ms"] == pytest.approx(t["predicted_ms"] / 8)
    assert t["predicted_per_second"] == pytest.approx(8e3 / t["predicted_ms"])
    single = demo().generate(PROMPT, 1, ignore_eos=True, **GREEDY).result.timings
    assert single["predicted_per_second"] == 0.0
