"""Requests of every kind that come and go at random: each answer is, bit for bit, that of the same
request running alone and without drafts."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import riverrun as rr
from demo import demo
from engine_rig import DRAFTED, SPECS, constrained, drafted, finish, solo
from riverrun.engine.request import Request
from rollback_rig import STRATEGIES

SCHEDULES = 50  # for each strategy
QUICK = 8  # of them, those that every run makes


@cache
def kinds() -> dict[str, dict[str, Any]]:
    """Requests by name; texts under a constraint where the library for them is installed."""
    found = dict(SPECS)
    if importlib.util.find_spec("llguidance"):
        found["constrained"] = constrained()
    return found


@cache
def engine(strategy: str, n_seqs: int, device: str = "cpu") -> rr.Engine:
    """One engine for many schedules, so that each begins with what others left behind."""
    return rr.Engine(demo(device), n_seqs=n_seqs, n_ctx=1536, draft_max=4, rollback=strategy)


@cache
def opener(kind: str) -> dict[str, Any]:
    return drafted(DRAFTED[kind])


def choose(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A request, with drafts or without."""
    name = rng.choice(list(kinds()))
    spec = dict(kinds()[name])
    spec["speculative"] = None
    if rng.random() < 0.5:
        spec |= opener(rng.choice(list(DRAFTED)))
    return name, spec


def run(e: rr.Engine, seed: int) -> list[tuple[str, Request]]:
    """Eight requests that join at random steps; some are cancelled at random ones."""
    rng = random.Random(seed)
    waiting = [choose(rng) for _ in range(8)]
    leaving: dict[int, Request] = {}
    asked: list[tuple[str, Request]] = []
    step = 0
    while waiting or not e.idle:
        while waiting and (e.idle or rng.random() < 0.3):
            name, spec = waiting.pop()
            request = e.submit(**spec)
            asked.append((name, request))
            if rng.random() < 0.25:
                leaving[step + rng.randrange(30)] = request
        if step in leaving:
            leaving[step].cancel()
        e.step()
        step += 1
    finish(e)
    return asked


def require_solo(asked: list[tuple[str, Request]], specs: Mapping[str, Any], model: Any) -> None:
    for name, request in asked:
        want, got = solo(model, specs[name]), request.result
        assert got is not None
        if request.cancelled and got.finish_reason == "cancelled":
            assert got.tokens == want.tokens[: len(got.tokens)], name
            continue
        assert got.error == "", name
        assert (got.tokens, got.text) == (want.tokens, want.text), name
        assert got.finish_reason == want.finish_reason, name


SEEDS = [
    pytest.param(seed, marks=() if seed < QUICK else pytest.mark.full) for seed in range(SCHEDULES)
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_answer_is_the_one_alone(strategy: str, seed: int) -> None:
    e = engine(strategy, (3, 8)[seed % 2])
    require_solo(run(e, seed), kinds(), demo())
