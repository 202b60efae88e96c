"""Chained drafting: which tokens are picked, which are drawn and from what."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from demo import PROMPTS, demo
from model_drafts import Duet
from riverrun.speculative.chain import Chain, ChainDrafter, Likeliest, likeliest
from riverrun.speculative.drafter import Ask, Draft, Draw
from riverrun.speculative.mtp import Mtp

N_VOCAB = 40
IDS = PROMPTS["p64"]["ids"]


class Scripted(ChainDrafter):
    """Row i of the script follows i tokens, whatever they are; two rows more are padding."""

    def __init__(self, script: np.ndarray, draft_min: int = 0, p_min: float = 0.0) -> None:
        super().__init__(N_VOCAB, draft_min, p_min)
        self.script, self.passes = script, 0

    def _open(self, asks: Sequence[Ask], k: int) -> Likeliest:
        self.passes += 1
        return likeliest(np.stack([self.script[0, : self.n_vocab]] * len(asks)), k)

    def _extend(self, chains: Sequence[Chain], rows: Sequence[int], k: int) -> Likeliest:
        self.passes += 1
        logits = np.stack([self.script[len(c.tokens), : self.n_vocab] for c in chains])
        return likeliest(logits, k)

    def _close(self, chains: Sequence[Chain]) -> None:
        pass

    def _abandon(self, chains: Sequence[Chain]) -> None:
        pass

    def clear(self, seq: int) -> None:
        pass


def script(rows: int = 6, seed: int = 0) -> np.ndarray:
    """Random logits; the rows of padding are the largest of all."""
    logits = np.random.default_rng(seed).normal(0, 2, (rows, N_VOCAB + 2)).astype(np.float32)
    logits[:, N_VOCAB:] = 50
    return logits


def shares(row: np.ndarray, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """The ten likeliest of a row and their softmax."""
    row = row[:N_VOCAB].astype(np.float64)
    ids = np.argsort(-row, kind="stable")[:10]
    weights = np.exp((row[ids] - row[ids[0]]) / temperature)
    return ids, weights / weights.sum()


def one(drafter: ChainDrafter, limit: int, draw: Draw | None = None, length: int = 5) -> Draft:
    return drafter.draft([Ask(0, list(range(length)), limit, draw)])[0]


def test_picks_the_likeliest() -> None:
    rows = script()
    draft = one(Scripted(rows), 5)
    assert draft.tokens == rows[:5, :N_VOCAB].argmax(-1).tolist()
    assert draft.distributions is None


@pytest.mark.parametrize("limit", [1, 3, 6])
def test_a_pass_for_each_token(limit: int) -> None:
    drafter = Scripted(script())
    assert len(one(drafter, limit).tokens) == limit == drafter.passes


@pytest.mark.parametrize("draw", [None, Draw(0.7, 3)])
def test_p_min_ends_a_chain_before_the_token(draw: Draw | None) -> None:
    """The share of the likeliest token among ten, at the temperature that it is drawn with."""
    rows = script(8, seed=4)
    best = [shares(row, draw.temperature if draw else 1.0)[1].max() for row in rows]
    for p_min in (0.0, *sorted(best)):
        want = next((i for i, p in enumerate(best) if p < p_min), len(best))
        drafter = Scripted(rows, p_min=float(p_min))
        draft = one(drafter, 8, draw)
        assert len(draft.tokens) == want
        assert drafter.passes == min(want + 1, 8)
        if draft.distributions is not None:
            assert len(draft.distributions) == want


def test_draft_min_drops_shorter_chains() -> None:
    rows = script(4)
    rows[[0, 1, 3], 7] = 30
    rows[2] = 0  # nothing is likely
    for least, want in ((0, 2), (2, 2), (3, 0)):
        assert len(one(Scripted(rows, least, p_min=0.2), 4).tokens) == want
    short = Scripted(rows, draft_min=3)
    assert one(short, 2) == Draft([])
    assert short.passes == 0
    both = short.draft([Ask(0, [1], 2), Ask(1, [1], 4)])
    assert [len(d.tokens) for d in both] == [0, 4]


@pytest.mark.parametrize("temperature", [0.2, 1.0, 1.7])
def test_draws_are_distributed_as_said(temperature: float) -> None:
    """20,000 seeds; each count lies within five standard deviations."""
    rows, n = script(1), 20_000
    ids, p = shares(rows[0], temperature)
    drafter, counts = Scripted(rows), np.zeros(N_VOCAB)
    for seed in range(n):
        draft = one(drafter, 1, Draw(temperature, seed))
        counts[draft.tokens[0]] += 1
    assert draft.distributions is not None
    np.testing.assert_array_equal(draft.distributions[0][0], ids)
    np.testing.assert_allclose(draft.distributions[0][1], p, rtol=1e-12)
    spread = np.sqrt(n * p * (1 - p))
    assert (np.abs(counts[ids] - n * p) <= 5 * spread + 1).all()
    assert counts.sum() == counts[ids].sum() == n


def test_draws_repeat_and_differ_by_seed_and_position() -> None:
    rows = np.tile(script(1), (6, 1))
    first = one(Scripted(rows), 6, Draw(2.0, 1)).tokens
    assert one(Scripted(rows), 6, Draw(2.0, 1)).tokens == first
    assert len(set(first)) > 1
    assert one(Scripted(rows), 6, Draw(2.0, 2)).tokens != first
    # A number belongs to a position: a chain that starts one later draws the same from there on.
    assert one(Scripted(rows), 5, Draw(2.0, 1), length=6).tokens == first[1:]


def test_fewer_tokens_than_candidates() -> None:
    drafter = Scripted(script(1))
    drafter.n_vocab = 3
    draft = one(drafter, 1, Draw(1.0, 0))
    assert draft.distributions is not None
    assert sorted(draft.distributions[0][0].tolist()) == [0, 1, 2]


def test_draws_of_a_model_repeat() -> None:
    """The same seed gives the same drafts, alone and beside another sequence."""
    d = Duet.of(demo(), Mtp, n_seqs=2)
    newest = {0: d.prompt(IDS, 0), 1: d.prompt(IDS[:30], 1)}
    draws = [d.drafts({0: newest[0]}, 4, Draw(1.5, seed))[0].tokens for seed in range(12)]
    again = [d.drafts(newest, 4, Draw(1.5, seed))[0].tokens for seed in range(12)]
    assert draws == again
    assert len({tuple(tokens) for tokens in draws}) > 4
