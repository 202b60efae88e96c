"""One constraint serves any number of generations, and of its own vocabulary only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from constrained import ENDS, generate, legal, tokenizer_of, tokens_of
from riverrun.engine.constraints import Constraint, compile_constraint, start_constraint
from riverrun.graph.errors import RequestError
from riverrun.models.tokenizer import load_tokenizer
from tokenizer_samples import CONTROL, bpe_metadata

SOURCES: dict[str, tuple[str, Any]] = {
    "schema": ("json_schema", {"type": "array", "items": {"type": "integer"}, "minItems": 1}),
    "regex": ("regex", "[a-c]{2,9}"),
    "lark": ("grammar", 'start: "(" /[a-z]+/ ")"'),
    "gbnf": ("grammar", 'root ::= "(" root ")" | [a-z]'),
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_generation_starts_before_the_first_token(name: str) -> None:
    tokenizer = tokenizer_of("demo")
    constraint = compile_constraint(tokenizer, *SOURCES[name])
    first = generate(constraint.start(tokenizer), tokenizer, seed=1)
    assert first == generate(constraint.start(tokenizer), tokenizer, seed=1)
    used = constraint.start(tokenizer)
    assert generate(used, tokenizer, seed=1) == first and used.finished
    assert generate(used.start(tokenizer), tokenizer, seed=1) == first
    generate(constraint, tokenizer, seed=2)
    assert generate(constraint.start(tokenizer), tokenizer, seed=1) == first


def test_generations_in_turn_are_independent() -> None:
    tokenizer = tokenizer_of("demo")
    constraint = compile_constraint(tokenizer, "regex", "ab|cd")
    one, two = constraint.start(tokenizer), constraint.start(tokenizer)
    a, b, c, d = tokens_of(tokenizer, "abcd")
    one.accept(a)
    two.accept(c)
    assert one.allows(b) and not one.allows(d)
    assert two.allows(d) and not two.allows(b)
    one.rollback(1)
    assert one.allows(c) and not two.allows(c)


def test_another_load_of_the_same_vocabulary_is_accepted() -> None:
    keys = bpe_metadata(specials=ENDS, eos_token_id=262)
    one, two = load_tokenizer(keys, "one.gguf"), load_tokenizer(dict(keys), "two.gguf")
    constraint = compile_constraint(one, "regex", "[ab]+")
    assert legal(constraint.start(two), two) == legal(constraint, one) == [ord("a"), ord("b")]


OTHERS: dict[str, dict[str, Any]] = {
    "more tokens": {"specials": (*ENDS, ("<more>", CONTROL))},
    "another token": {"specials": (*ENDS[:1], ("<|eot_id|>", CONTROL))},
    "other ends": {"eos_token_id": 263, "specials": (("<x>", CONTROL), ENDS[1])},
    "tokens that must not be sampled": {"suppress_tokens": [ord("a")]},
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_vocabulary_is_refused(name: str) -> None:
    keys = {"specials": ENDS, "eos_token_id": 262}
    own = load_tokenizer(bpe_metadata(**keys), "own.gguf")
    other = load_tokenizer(bpe_metadata(**keys | OTHERS[name]), "other.gguf")
    for constraint in (
        compile_constraint(own, "regex", "[ab]+"),
        compile_constraint(own, "regex", "[ab]+").start(own),
    ):
        with pytest.raises(RequestError, match=r"vocabulary of own\.gguf .* of other\.gguf"):
            constraint.start(other)
    back = compile_constraint(other, "regex", "[ab]+")
    with pytest.raises(RequestError, match=r"vocabulary of other\.gguf .* of own\.gguf"):
        back.start(own)


def test_models_of_different_families_are_told_apart() -> None:
    constraint = compile_constraint(tokenizer_of("bpe"), "json_object")
    for name in ("spm", "demo"):
        with pytest.raises(RequestError, match=rf"vocabulary of bpe .* of {name} "):
            start_constraint(constraint, tokenizer_of(name))


class Countdown:
    """Any n tokens; written without `start`."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.taken: list[int] = []

    @property
    def finished(self) -> bool:
        return self.left == len(self.taken)

    def mask(self, logits: np.ndarray) -> np.ndarray:
        return logits

    def allows(self, token: int) -> bool:
        return not self.finished

    def accept(self, token: int) -> None:
        self.taken.append(token)

    def rollback(self, n: int) -> None:
        del self.taken[len(self.taken) - n :]

    def validate(self, tokens: Sequence[int]) -> int:
        return min(len(tokens), self.left - len(self.taken))

    def clone(self) -> Countdown:
        other = Countdown(self.left)
        other.taken = self.taken.copy()
        return other


class Derived(Countdown, Constraint):
    """Written as the documentation says, with the default `start`."""


@pytest.mark.parametrize("kind", [Countdown, Derived])
def test_constraints_of_a_users_own_start_as_clones(kind: type[Countdown]) -> None:
    tokenizer = tokenizer_of("bpe")
    own = kind(2)
    for _ in range(3):
        started = start_constraint(own, tokenizer)
        assert started is not own
        started.accept(1)
        started.accept(2)
        assert started.finished and not own.finished


@pytest.mark.parametrize("wrong", ["json", ("regex", "a"), {"type": "object"}, 5, Countdown])
def test_what_is_no_constraint_is_refused(wrong: Any) -> None:
    if wrong is Countdown:
        wrong = type("Half", (), {"mask": None, "accept": lambda self, token: None})()
    with pytest.raises(RequestError, match=r"expected what model.constraint\(kind, source\)"):
        start_constraint(wrong, tokenizer_of("bpe"))
