"""What grammars of answers allow, over a small vocabulary in which all markers are text."""

from __future__ import annotations

from typing import Any

from chat_outputs import TOOLS, format_of
from constrained import random_logits, text_of, tokenizer_of, tokens_of
from riverrun.engine.constraints import Constraint, compile_constraint


def grammar(name: str, choice: str = "auto", tail: str = "", **options: Any) -> str | None:
    asked = {"tools": TOOLS, "parallel": True, "special": lambda text: None, **options}
    return format_of(name).grammar(choice=choice, prompt_tail=tail, **asked)


def compiled(name: str, choice: str = "auto", tail: str = "", **options: Any) -> Constraint:
    lark = grammar(name, choice, tail, **options)
    assert lark is not None
    return compile_constraint(tokenizer_of("bpe"), "grammar", lark)


def takes(constraint: Constraint, text: str) -> str:
    """How much of a text is allowed; END behind it where the answer may end there."""
    tokenizer = tokenizer_of("bpe")
    tokens = tokens_of(tokenizer, text)
    n = constraint.clone().validate(tokens)
    taken = text.encode()[:n].decode(errors="ignore")
    if n < len(tokens):
        return taken
    end = next(iter(tokenizer.eog_ids))
    return taken + "END" * (constraint.clone().validate([*tokens, end]) > n)


ENDS = ("</parameter>", "</arg_value>")


def random_answer(constraint: Constraint, seed: int) -> str:
    """Greedy tokens of random logits; from some step on, texts between tags are ended."""
    tokenizer, tokens = tokenizer_of("bpe"), list[int]()
    endings = [tokens_of(tokenizer, text) for text in ENDS]
    for step in range(300):
        for ending in endings if step > 20 else ():
            if constraint.validate(ending) == len(ending):
                for token in ending:
                    constraint.accept(token)
                tokens += ending
        token = int(constraint.mask(random_logits(tokenizer, seed, step, 24)).argmax())
        constraint.accept(token)
        if token in tokenizer.eog_ids:
            return text_of(tokenizer, tokens)
        tokens.append(token)
    raise AssertionError(f"no end after {text_of(tokenizer, tokens[:80])!r}")
