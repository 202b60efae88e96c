"""Generations one after another in a session: it holds what was given out, and goes on as if there
had been no break."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import riverrun as rr
from demo import PROMPTS, demo
from riverrun.graph.errors import RequestError, SessionBusy
from spec_rig import draft_model, speculation

PROMPT = PROMPTS["p17"]["ids"]
MORE = [311, 838, 25, 1512]
GREEDY: dict[str, Any] = {"temperature": 0.0}


def session(**options: Any) -> rr.Session:
    return demo().session(512, n_rs_seq=4, **options)


def generate(s: rr.Session, prompt: Any, n: int, **options: Any) -> rr.Result:
    return demo().generate(prompt, n, session=s, **(GREEDY | options)).result


def by_length(s: rr.Session, **options: Any) -> rr.Result:
    return generate(s, PROMPT, 12, ignore_eos=True, **options)


def by_stop_text(s: rr.Session, **options: Any) -> rr.Result:
    result = generate(s, PROMPT, 60, stop=["return"], **options)
    assert result.finish_reason == "stop"
    return result


def by_stop_token(s: rr.Session, **options: Any) -> rr.Result:
    end = demo().generate(PROMPT, 9, ignore_eos=True, **GREEDY).result.tokens[-1]
    result = generate(s, PROMPT, 60, stop_token_ids=[end], ignore_eos=True, **options)
    assert result.finish_reason == "stop" and end not in result.tokens
    return result


def by_end_token(s: rr.Session, **options: Any) -> rr.Result:
    end = next(iter(demo().tokenizer.eog_ids))
    bias = {end: 11.0}
    result = generate(s, PROMPT, 200, logit_bias=bias, **options)
    assert result.finish_reason == "stop" and end not in result.tokens
    return result


def by_closing(s: rr.Session, **options: Any) -> rr.Result:
    generation = demo().generate(PROMPT, 40, session=s, ignore_eos=True, **(GREEDY | options))
    for _ in range(5):
        next(generation)
    generation.close()
    assert generation.result.finish_reason == "cancelled"
    return generation.result


def by_constraint(s: rr.Session, **options: Any) -> rr.Result:
    if importlib.util.find_spec("llguidance") is None:
        pytest.skip("constraints need llguidance, which is not installed")
    rule = demo().constraint("regex", "[a-z]{3,9}")
    return generate(s, PROMPT, 40, constraint=rule, **options)


ENDINGS: dict[str, Callable[..., rr.Result]] = {
    "length": by_length,
    "stop_text": by_stop_text,
    "stop_token": by_stop_token,
    "end_token": by_end_token,
    "closing": by_closing,
    "constraint": by_constraint,
}
DRAFTS = {"plain": (), "mtp": ("mtp",), "draft": ("draft",), "ngram": ("ngram-mod",)}


@pytest.mark.parametrize("kinds", DRAFTS)
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_session_goes_on_from_what_was_given_out(ending: str, kinds: str) -> None:
    drafts = DRAFTS[kinds]
    more = {"speculative": speculation(drafts, 4)} if drafts else {}
    s = session()
    first = ENDINGS[ending](s, **more)
    whole = [*PROMPT, *first.tokens]
    assert s.tokens() == whole and s.length() == len(whole)
    second = generate(s, MORE, 10, ignore_eos=True, **more)
    want = demo().generate([*whole, *MORE], 10, n_ctx=512, ignore_eos=True, **GREEDY).result
    assert second.tokens == want.tokens
    assert s.tokens() == [*whole, *MORE, *second.tokens]


def test_a_break_changes_nothing() -> None:
    """Three generations, saved and restored between two of them, and their text in one go."""
    s = session()
    texts = [*PROMPT]
    for i, prompt in enumerate((PROMPT, MORE, MORE)):
        result = generate(s, prompt, 7 + i, ignore_eos=True, temperature=0.8, seed=5)
        texts += [*(prompt if i else []), *result.tokens]
        if i == 1:
            data, s = s.save(), session()
            s.restore(data)
    assert s.tokens() == texts
    s.settle()
    plain = session()
    plain.prefill(texts)
    plain.settle()
    got, want = s.memory.save(0), plain.memory.save(0)
    assert {n: a.tobytes() for n, a in got.items()} == {n: a.tobytes() for n, a in want.items()}


def test_penalties_see_the_whole_text() -> None:
    s = session()
    first = generate(s, PROMPT, 8, ignore_eos=True, repeat_penalty=1.3)
    second = generate(s, MORE, 8, ignore_eos=True, repeat_penalty=1.3)
    prompt = [*PROMPT, *first.tokens, *MORE]
    want = demo().generate(prompt, 8, ignore_eos=True, repeat_penalty=1.3, n_ctx=512, **GREEDY)
    assert second.tokens == want.result.tokens


def test_a_text_that_continues_another_has_no_begin_token(monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked = demo(), list[bool]()
    encode = type(model.tokenizer).encode

    def spy(self: Any, text: str, add_special: bool = True, parse_special: bool = False) -> Any:
        asked.append(add_special)
        return encode(self, text, add_special, parse_special)

    monkeypatch.setattr(type(model.tokenizer), "encode", spy)
    s = session()
    for options in ({}, {}, {"cache_prompt": True}):
        assert model.generate("def f(", 2, session=s, **GREEDY, **options).result.tokens
    assert asked == [True, False, True]


def test_a_generation_has_its_session_until_it_ends() -> None:
    s = session()
    first = demo().generate(PROMPT, 20, session=s, ignore_eos=True, **GREEDY)
    next(first)
    for use in (
        lambda: demo().generate(MORE, 2, session=s, **GREEDY),
        lambda: s.decode(5),
        lambda: s.clear(),
        lambda: s.save(),
    ):
        with pytest.raises(SessionBusy, match="belongs to a generation"):
            use()
    assert s.tokens()[:17] == PROMPT
    want = demo().generate(PROMPT, 20, ignore_eos=True, **GREEDY).result
    assert first.result.tokens == want.tokens
    s.decode(5)


@pytest.mark.parametrize("end", ["close", "drop"])
def test_a_generation_that_is_left_frees_its_session(end: str) -> None:
    s = session()
    generation = demo().generate(PROMPT, 20, session=s, ignore_eos=True, **GREEDY)
    next(generation)
    if end == "close":
        generation.close()
    else:
        del generation
    s.decode(5)


def test_a_session_of_another_model_is_refused() -> None:
    other = draft_model(("draft",))
    assert other is not None
    with pytest.raises(RequestError, match="one of another model"):
        demo().generate(PROMPT, 2, session=other.session(64))
    with pytest.raises(RequestError, match="n_ctx"):
        demo().generate(PROMPT, 2, session=session(), n_ctx=100)


def test_what_no_longer_fits_is_said_with_all_numbers() -> None:
    s = demo().session(40)
    generate(s, PROMPT, 10, ignore_eos=True)
    with pytest.raises(RequestError, match=r"27 tokens.*prompt's 17.*context of 40"):
        generate(s, PROMPT, 1)
    assert s.length() == 27


def test_a_constraint_serves_any_number_of_generations() -> None:
    if importlib.util.find_spec("llguidance") is None:
        pytest.skip("constraints need llguidance, which is not installed")
    rule = demo().constraint("regex", "[a-z]{2,5}")
    found = [
        demo().generate(PROMPT, 20, constraint=rule, n_ctx=512, **GREEDY).result.text
        for _ in range(2)
    ]
    assert found[0] == found[1] and 2 <= len(found[0]) <= 5
    batch = demo().generate_batch([PROMPT, PROMPT], max_tokens=20, constraint=rule, **GREEDY)
    assert [result.text for result in batch] == found
