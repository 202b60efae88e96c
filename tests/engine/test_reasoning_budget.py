"""Reasoning that ends after so many tokens."""

from __future__ import annotations

import numpy as np
import pytest
from answer_grammars import compiled
from constrained import legal, random_logits, text_of, tokenizer_of, tokens_of
from demo import demo
from riverrun.engine.constraints import ReasoningBudget, compile_constraint, start_constraint
from riverrun.graph.errors import RequestError
from riverrun.models.chat.output.parser import THINK

OPEN, CLOSE = THINK.open, THINK.close


def budget(name: str, most: int, begun: bool = False) -> ReasoningBudget:
    return ReasoningBudget(tokenizer_of(name), most, OPEN, CLOSE, begun=begun)


def forced(constraint: ReasoningBudget, name: str) -> str:
    """What has to come from here on."""
    tokenizer, tokens = tokenizer_of(name), list[int]()
    while len(found := legal(constraint, tokenizer)) == 1:
        constraint.accept(found[0])
        tokens.append(found[0])
    return text_of(tokenizer, tokens)


@pytest.mark.parametrize("name", ["bpe", "demo"], ids=["one-token", "several-tokens"])
@pytest.mark.parametrize("begun", [True, False], ids=["begun", "written"])
def test_the_tag_comes_after_so_many_tokens(name: str, begun: bool) -> None:
    tokenizer = tokenizer_of(name)
    for most in (0, 1, 5):
        found = start_constraint(budget(name, most, begun), tokenizer)
        for token in tokens_of(tokenizer, "" if begun else f" \n{OPEN}"):
            assert len(legal(found, tokenizer)) == tokenizer.n_vocab
            found.accept(token)
        for token in tokens_of(tokenizer, "abcde"[:most]):
            assert len(legal(found, tokenizer)) == tokenizer.n_vocab
            assert found.allows(token)
            found.accept(token)
        assert not found.allows(tokens_of(tokenizer, "x")[0])
        with pytest.raises(RequestError, match="ends the reasoning"):
            found.accept(tokens_of(tokenizer, "x")[0])
        assert forced(found, name) == CLOSE
        for token in tokens_of(tokenizer, f"{OPEN} free again, {CLOSE}"):
            found.accept(token)
        assert len(legal(found, tokenizer)) == tokenizer.n_vocab


@pytest.mark.parametrize(
    "text", [f"ab{CLOSE}cdefg", "abcdefg", f"x{OPEN}abcdefgh", "<thin abcdefgh"]
)
def test_what_is_within_the_budget_is_free(text: str) -> None:
    found, tokenizer = budget("bpe", 12, begun=text.startswith("a")), tokenizer_of("bpe")
    for token in tokens_of(tokenizer, text):
        assert len(legal(found, tokenizer)) == tokenizer.n_vocab
        found.accept(token)


@pytest.mark.parametrize("n", range(1, len(CLOSE)))
def test_a_tag_that_has_begun_is_completed(n: int) -> None:
    found, tokenizer = budget("demo", 3 + n, begun=True), tokenizer_of("demo")
    for token in tokens_of(tokenizer, f"a<b{CLOSE[:n]}"):
        found.accept(token)
    assert forced(found, "demo") == CLOSE[n:]


def test_logits_beyond_the_vocabulary_are_never_legal() -> None:
    n = tokenizer_of("bpe").n_vocab
    for found in (budget("bpe", 5), budget("bpe", 0, begun=True)):
        masked = found.mask(np.zeros(n + 7, np.float32))
        assert masked.size == n + 7 and not np.isfinite(masked[n:]).any()


@pytest.mark.parametrize("seed", range(20))
def test_going_back_is_as_if_nothing_had_been(seed: int) -> None:
    tokenizer, rng = tokenizer_of("demo"), np.random.default_rng(seed)
    found, taken = budget("demo", 6, begun=bool(seed % 2)), list[int]()
    pool = tokens_of(tokenizer, f"ab{OPEN}{CLOSE}")
    for step in range(60):
        if taken and rng.random() < 0.3:
            n = int(rng.integers(1, len(taken) + 1))
            found.rollback(n)
            del taken[-n:]
        else:
            logits = random_logits(tokenizer, seed, step, 1000)
            logits[pool] += rng.standard_normal(len(pool)) + 8
            token = int(found.mask(logits).argmax())
            found.accept(token)
            taken.append(token)
        fresh = start_constraint(budget("demo", 6, begun=bool(seed % 2)), tokenizer)
        assert fresh.validate(taken) == len(taken)
        for token in taken:
            fresh.accept(token)
        assert legal(fresh, tokenizer) == legal(found, tokenizer)
        assert legal(found.clone(), tokenizer) == legal(found, tokenizer)
    with pytest.raises(RequestError, match="rollback"):
        found.rollback(len(taken) + 1)


def test_beside_a_grammar() -> None:
    """Reasoning is cut, and what follows is a call."""
    pytest.importorskip("llguidance")
    tokenizer, tail = tokenizer_of("bpe"), f"{OPEN}\n"
    inner = compiled("hermes", "now", tail, parallel=False)
    bounded = ReasoningBudget(tokenizer, 4, OPEN, CLOSE, begun=True, within=inner)
    found = start_constraint(bounded, tokenizer)
    for token in tokens_of(tokenizer, "abcd"):
        found.accept(token)
    shut = tokenizer.encode(CLOSE, add_special=False, parse_special=True)
    assert legal(found, tokenizer) == shut
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    answer = [*shut, *tokens_of(tokenizer, call)]
    assert found.validate(answer) == len(answer)
    for token in answer:
        found.accept(token)
    assert found.finished
    found.rollback(len(answer))
    assert legal(found, tokenizer) == shut


def test_a_grammar_that_allows_no_tag_goes_before() -> None:
    pytest.importorskip("llguidance")
    tokenizer = tokenizer_of("bpe")
    inner = compile_constraint(tokenizer, "regex", "[ab]{2,9}")
    found = ReasoningBudget(tokenizer, 1, OPEN, CLOSE, begun=True, within=inner)
    for token in tokens_of(tokenizer, "abab"):
        assert found.allows(token)
        found.accept(token)


@pytest.mark.parametrize("most", [6, 7])
@pytest.mark.parametrize("spec", [None, "ngram-simple"])
def test_generations_are_bounded(spec: str | None, most: int) -> None:
    """With drafts and without: free up to the budget, then the tag, or the rest of it."""
    model = demo()
    prompt = "def f(a, b, c, d, e, f):\n    return f(a, b, c, d, e, f)\n\n" + OPEN
    free = model.generate_batch([prompt], max_tokens=40, temperature=0)[0]
    bound = ReasoningBudget(model.tokenizer, most, OPEN, CLOSE, begun=True)
    options = {"temperature": 0, "constraint": bound, "speculative": spec}
    (found,) = model.generate_batch([prompt], max_tokens=40, **options)
    assert found.tokens[:most] == free.tokens[:most]
    kept = model.tokenizer.decode(free.tokens[:most])
    assert kept.endswith("<") == (most == 7)
    assert found.text.startswith(kept.removesuffix("<") + CLOSE)
    assert len(found.tokens) == 40
