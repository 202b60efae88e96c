"""Prompts that go on from earlier texts, beside cold runs of the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import riverrun as rr
from engine_rig import finish
from interrupts import lines
from paged_rig import check_pages
from riverrun.engine.memory import PagedKV
from riverrun.engine.request import Request
from rollback_rig import stream, tiny

N_CTX = 2048
GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}


@cache
def cold(variant: str, prompt: tuple[int, ...], n: int) -> list[int]:
    return tiny(variant).generate(list(prompt), n, n_ctx=N_CTX, **GREEDY).result.tokens


def ask(e: rr.Engine, prompt: list[int], n: int = 4, **more: Any) -> Request:
    return e.submit(prompt, n, cache_prompt=True, **(GREEDY | more))


def require_cold(request: Request, variant: str) -> None:
    assert request.result is not None and request.result.error == ""
    n = request.options.max_tokens
    assert request.tokens == cold(variant, tuple(request.prompt), n)
    timings = request.timings
    assert timings.cache_n + timings.prompt_n == len(request.prompt)


def check(e: rr.Engine) -> None:
    for part in e.session.memory.parts:
        if isinstance(part, PagedKV):
            check_pages(part)


def break_off(
    e: rr.Engine,
    prepare: Callable[[], Callable[[], object]],
    prompts: Sequence[list[int]],
    variant: str,
    step: int,
) -> None:
    """Break off what is prepared at every step-th line; each time prompts go on to give what cold
    runs give."""
    for _ in lines(prepare, step=step):
        finish(e)
        # What a lost sequence has is only put right when it is used again.
        if not any(map(e.sequences.is_lost, range(e.sequences.n_seqs))):
            check(e)
        for prompt in prompts:
            request = ask(e, prompt)
            finish(e)
            require_cold(request, variant)
        check(e)


class Agent:
    """A conversation whose template leaves earlier thoughts out: each prompt shares all but the
    last answer with the text before."""

    def __init__(self, seed: int) -> None:
        self.seed, self.turn = seed, 0
        self.said = stream(seed, 100)

    def prompt(self) -> list[int]:
        return self.said + stream(self.seed + self.turn, 30)

    def hear(self, prompt: list[int], answer: list[int]) -> int:
        """Its answer without thoughts; how many tokens of the next prompt are new."""
        self.turn += 1
        self.said = prompt + answer[-20:]
        return 20 + 30
