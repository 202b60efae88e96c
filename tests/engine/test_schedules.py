"""Requests of every kind that come and go at random: each answer is, bit for bit, that of the same
request running alone and without drafts."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import pytest
import riverrun as rr
from demo import demo
from engine_rig import DRAFTED, SPECS, constrained, drafted
from rollback_rig import STRATEGIES
from schedules import require_solo, run

SCHEDULES = 50  # for each strategy
QUICK = 4  # of them, those that every run makes


@cache
def kinds() -> dict[str, dict[str, Any]]:
    """Requests by name; texts under a constraint where the library for them is installed."""
    found = dict(SPECS)
    if importlib.util.find_spec("llguidance"):
        found["constrained"] = constrained()
    return found


@cache
def engine(strategy: str, n_seqs: int) -> rr.Engine:
    """One engine for many schedules, so that each begins with what others left behind."""
    return rr.Engine(demo(), n_seqs=n_seqs, n_ctx=1536, draft_max=4, rollback=strategy)


@cache
def openers() -> list[dict[str, Any]]:
    return [drafted(kinds) for kinds in DRAFTED.values()]


SEEDS = [
    pytest.param(seed, marks=() if seed < QUICK else pytest.mark.full) for seed in range(SCHEDULES)
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_answer_is_the_one_alone(strategy: str, seed: int) -> None:
    e = engine(strategy, (3, 8)[seed % 2])
    require_solo(run(e, seed, kinds(), openers()), kinds(), demo())
