"""Choosing from the largest logits gives what choosing from all of them gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import riverrun as rr
from demo import PROMPTS, demo
from riverrun.engine.sampler import Sampler, SamplerParams, sampler
from riverrun.models.step import CANDIDATES

N_VOCAB, PADDING = sampler.LARGE, 40
GREEDY = {"temperature": 0.0}
CASES: dict[str, dict[str, Any]] = {
    "repeat": {**GREEDY, "repeat_penalty": 1.3},
    "raises": {**GREEDY, "repeat_penalty": 0.6, "presence_penalty": -1.0},
    "counts": {**GREEDY, "frequency_penalty": 0.7, "presence_penalty": 0.3, "repeat_last_n": -1},
    "bias": {**GREEDY, "logit_bias": {5: 9.0, 77: -100.0, N_VOCAB - 1: 3.0}},
    "drawn": {"repeat_penalty": 1.2, "top_k": 40, "temperature": 1.1, "seed": 7},
    "all steps": {
        "repeat_penalty": 1.1,
        "logit_bias": {9: 4.0},
        "top_k": 20,
        "top_p": 0.8,
        "min_p": 0.02,
        "temperature": 1.5,
        "seed": 3,
    },
}


def shortlist(row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As op top_k has it: descending, of equal ones the lowest ids."""
    ids = np.argsort(-row, kind="stable")[:CANDIDATES]
    return ids.astype(np.int32), row[ids]


def made_row(seed: int) -> np.ndarray:
    """Logits of a padded vocabulary; every third time with many that are equal."""
    row = np.random.default_rng(seed).standard_normal(N_VOCAB + PADDING).astype(np.float32) * 3
    return np.round(row) if seed % 3 == 0 else row


@pytest.mark.parametrize("case", CASES)
def test_a_shortlist_changes_no_token(case: str) -> None:
    plain, short = (Sampler(SamplerParams(**CASES[case]), N_VOCAB, [1, 2]) for _ in range(2))
    assert short.shortens
    for seed in range(60):
        row = made_row(seed)
        # Padding among the largest, and a window that holds several of the others.
        row[N_VOCAB + seed % PADDING] = 50.0
        own = row[:N_VOCAB]
        token = plain.sample(own, seed)
        assert short.sample(own, seed, shortlist(row)) == token
        for taken in (token, int(own.argmax())):
            plain.accept(taken)
            short.accept(taken)


@pytest.mark.parametrize("case", ["repeat", "drawn"])
def test_one_that_may_lack_the_token_is_not_used(case: str) -> None:
    """All of the largest are penalised so much that others are larger."""
    row = made_row(1)
    ids, largest = shortlist(row)
    params = SamplerParams(**{**CASES[case], "presence_penalty": 100.0})
    token = Sampler(params, N_VOCAB, ids).sample(row[:N_VOCAB], 0, (ids, largest))
    assert token not in ids


def test_logits_that_are_not_sound_are_told() -> None:
    row = made_row(2)[:N_VOCAB]
    row[17] = np.nan
    chooser = Sampler(SamplerParams(**CASES["repeat"]), N_VOCAB)
    with pytest.raises(rr.errors.BackendError, match="NaN"):
        chooser.sample(row, 0, (np.array([17, 3], np.int32), np.array([np.nan, 1.0], np.float32)))


@pytest.mark.parametrize("case", ["repeat", "drawn"])
def test_requests_give_the_same_text(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**CASES[case], "ignore_eos": True}
    texts = [PROMPTS[name]["ids"] for name in ("p17", "p200")]
    model = demo()
    whole = [r.tokens for r in model.generate_batch(texts, max_tokens=24, **options)]
    monkeypatch.setattr(sampler, "LARGE", 1)
    seen: list[bool] = []
    choose = Sampler.sample

    def spy(self: Sampler, logits: np.ndarray, position: int, short: Any = None) -> int:
        seen.append(short is not None)
        return choose(self, logits, position, short)

    monkeypatch.setattr(Sampler, "sample", spy)
    assert [r.tokens for r in model.generate_batch(texts, max_tokens=24, **options)] == whole
    assert sum(seen) >= 2 * 23  # all but the first token of each, which comes with the prompt
