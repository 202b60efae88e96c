"""Requests that come and go on a card: each answer is that of the same request running alone there,
also where its prompt goes through kernels whose rows depend on the size of a pass."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import riverrun as rr
from cuda_rig import needs_cuda, thinned
from engine_rig import GREEDY, drafted
from rollback_rig import STRATEGIES, stream, tiny
from schedules import require_solo, run

pytestmark = needs_cuda
# Prompts of one pass and of several, whose lengths take different kernels.
SPECS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"prompt": stream(4)[:6] * 4, "max_tokens": 9, **GREEDY},
    "short": {"prompt": [5, 9, 100], "max_tokens": 4, **GREEDY},
    "one": {"prompt": [7], "max_tokens": 6, "seed": 2, "ignore_eos": True},
    "sampled": {"prompt": stream(5)[:40], "max_tokens": 8, "seed": 11, "ignore_eos": True},
    "hot": {
        "prompt": stream(6)[:17],
        "max_tokens": 7,
        "seed": 3,
        "temperature": 1.4,
        "top_k": 0,
        "ignore_eos": True,
    },
    "penalties": {"prompt": stream(7)[:9], "max_tokens": 8, "repeat_penalty": 1.3, **GREEDY},
    "chunks": {"prompt": stream(8, 560), "max_tokens": 3, "seed": 5, "ignore_eos": True},
}
QUICK = [name for name in SPECS if name != "chunks"]
VARIANTS = {
    "qwen35,mtp": ("mtp", "ngram-mod"),
    "gemma3": ("ngram-mod",),
    "qwen35moe": ("ngram-mod",),
}


@cache
def engine(variant: str, strategy: str, n_seqs: int) -> rr.Engine:
    """One for many schedules."""
    model, n_ctx = tiny(variant, "cuda"), 640
    return rr.Engine(model, n_seqs=n_seqs, n_ctx=n_ctx, draft_max=4, rollback=strategy)


@cache
def openers(variant: str) -> list[dict[str, Any]]:
    return [drafted((kind,)) for kind in VARIANTS[variant]]


KINDS = [*(("qwen35,mtp", strategy) for strategy in STRATEGIES), ("gemma3", "auto")]
KINDS += [("qwen35moe", "auto")]
# Emulated, every run makes one schedule of each of these, with 3 sequences or 4.
QUICK_CASES = {("qwen35,mtp", "replay", 0), ("qwen35,mtp", "snapshots", 1), ("gemma3", "auto", 0)}


def case(variant: str, strategy: str, seed: int) -> Any:
    quick = thinned(seed < 6, (variant, strategy, seed) in QUICK_CASES)
    return pytest.param(variant, strategy, seed, marks=() if quick else pytest.mark.full)


# 204 schedules on a card, of which every run makes the first few.
CASES = [case(*kind, seed) for kind in KINDS for seed in range(thinned(34, 2))]


@pytest.mark.parametrize("variant, strategy, seed", CASES)
def test_every_answer_is_the_one_alone(variant: str, strategy: str, seed: int) -> None:
    specs = SPECS if thinned(True, False) else {name: SPECS[name] for name in QUICK}
    e = engine(variant, strategy, (3, 4)[seed % 2])
    require_solo(run(e, seed, specs, openers(variant)), specs, tiny(variant, "cuda"))
