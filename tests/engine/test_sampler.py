"""The sampler chain against plain-Python formulations of each rule."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from riverrun.engine.sampler import Sampler, SamplerParams
from riverrun.engine.sampler.chain import CHAIN, Candidates, draw, min_p, scale, top_k, top_p
from riverrun.engine.sampler.window import TokenWindow
from riverrun.graph.random import uniform

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def normal_logits(n, seed, spread=3.0):
    return (np.random.default_rng(seed).standard_normal(n) * spread).astype(np.float32)


def dense(logits):
    return Candidates(np.arange(logits.size), logits)


def by_likelihood(logits, ids):
    return sorted(ids, key=lambda i: (-float(logits[i]), i))


def naive_top_p(logits, ids, p):
    """The ids kept, likeliest first, by running down the sorted list."""
    ranked = by_likelihood(logits, ids)
    weights = [math.exp(float(logits[i]) - float(logits[ranked[0]])) for i in ranked]
    total, running, kept = math.fsum(weights), 0.0, []
    for i, weight in zip(ranked, weights, strict=True):
        kept.append(i)
        running += weight
        if running >= p * total:
            break
    return kept


def naive_probs(params, logits, history):
    """Token -> probability, by the rules of the chain one after another."""
    value = {i: float(x) for i, x in enumerate(logits)}
    for token, bias in params.logit_bias.items():
        value[token] += bias
    last_n = len(history) if params.repeat_last_n == -1 else params.repeat_last_n
    for token, count in Counter(history[-last_n:] if last_n else []).items():
        x = value[token]
        x = x / params.repeat_penalty if x > 0 else x * params.repeat_penalty
        value[token] = x - count * params.frequency_penalty - params.presence_penalty
    ids = [i for i in value if value[i] > -math.inf]
    if params.top_k > 0:
        ids = by_likelihood(value, ids)[: params.top_k]
    if params.top_p < 1:
        ids = naive_top_p(value, ids, params.top_p)
    peak = max(value[i] for i in ids)
    if params.min_p > 0:
        ids = [i for i in ids if value[i] >= peak + math.log(params.min_p)]
    weights = {i: math.exp((value[i] - peak) / params.temperature) for i in ids}
    total = math.fsum(weights.values())
    return {i: weight / total for i, weight in weights.items()}


# Each step by itself


@pytest.mark.parametrize("n", [50, 1000, 40_001])
@pytest.mark.parametrize("k", [1, 2, 40, 400])
@pytest.mark.parametrize("kind", ["distinct", "ties", "masked", "equal"])
def test_top_k_keeps_what_a_full_sort_puts_first(n, k, kind):
    logits = normal_logits(n, seed=n + k)
    if kind == "ties":
        logits = np.round(logits)
    elif kind == "masked":
        logits[np.random.default_rng(k).random(n) < 0.999] = -np.inf
        logits[n // 2] = 1.0
    elif kind == "equal":
        logits[:] = 2.5
    got = top_k(dense(logits), k)
    if k >= n:
        assert got.ids.size == n
        return
    finite = np.flatnonzero(np.isfinite(logits)).tolist()
    assert got.ids.tolist() == by_likelihood(logits, finite)[:k]
    assert got.logits.tolist() == logits[got.ids].tolist()
    assert got.ordered


@pytest.mark.parametrize("n", [7, 300, 40_001])
@pytest.mark.parametrize("p", [1e-6, 0.3, 0.95, 0.9999])
@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0, 40.0])
def test_top_p_keeps_the_smallest_prefix_that_reaches_p(n, p, spread):
    # p * total must not fall on a partial sum, where rounding decides: n * p is no integer here.
    logits = normal_logits(n, seed=n, spread=spread)
    want = naive_top_p(logits, range(n), p)
    unordered = top_p(dense(logits), p)
    assert unordered.ids.tolist() == sorted(want)
    ranked = np.array(by_likelihood(logits, range(n)))
    ordered = top_p(Candidates(ranked, logits[ranked], True), p)
    assert ordered.ids.tolist() == want


def test_top_p_includes_the_token_that_crosses():
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05])).astype(np.float32)
    assert top_p(dense(logits), 0.79).ids.tolist() == [0, 1]
    assert top_p(dense(logits), 0.81).ids.tolist() == [0, 1, 2]
    assert top_p(dense(logits), 0.49).ids.tolist() == [0]


def test_top_p_of_masked_logits_keeps_no_masked_token():
    logits = np.array([-np.inf, 1.0, -np.inf, 1.0, 0.0], np.float32)
    assert top_p(dense(logits), 0.5).ids.tolist() == [1, 3]


@pytest.mark.parametrize("p", [0.01, 0.05, 0.5, 1.0])
def test_min_p_keeps_tokens_near_the_likeliest(p):
    logits = normal_logits(500, seed=3)
    probs = np.exp(logits.astype(np.float64))
    want = np.flatnonzero(probs >= p * probs.max() * (1 - 1e-6))
    assert min_p(dense(logits), p).ids.tolist() == want.tolist()


@pytest.mark.parametrize("temperature", [1e-300, 1e-3, 0.8, 100.0])
def test_temperature_divides_and_stays_finite_at_the_top(temperature):
    logits = np.array([3.0e38, -3.0e38, 2.9e38, 3.0e38], np.float32)
    scaled = scale(dense(logits), temperature).logits
    assert scaled[0] == scaled[3] == 0
    assert (scaled[1:3] < 0).all() and not np.isnan(scaled).any()
    small = np.array([1.0, 0.25], np.float32)
    assert scale(dense(small), 0.5).logits.tolist() == [0.0, -1.5]


@pytest.mark.parametrize(
    ("u", "index"), [(0.0, 1), (0.24, 1), (0.25, 3), (0.49, 3), (0.5, 4), (1 - 2**-53, 4)]
)
def test_draw_gives_each_index_its_share_and_none_to_zero(u, index):
    assert draw(np.array([0.0, 1.0, 0.0, 1.0, 2.0, 0.0]), u) == index


def test_draw_at_the_end_of_the_interval_stays_inside():
    weights = np.full(1001, 0.1)
    weights[-1] = 0.0
    assert draw(weights, np.nextafter(1.0, 0.0)) == 999


def test_chain_order_and_what_greedy_runs():
    names = [row.name for row in CHAIN]
    assert names == ["logit_bias", "penalties", "top_k", "top_p", "min_p", "temperature"]
    assert [row.name for row in CHAIN if row.shapes_greedy] == names[:2]


# The chain as a whole

SETTINGS = [
    SamplerParams(),
    SamplerParams(**OFF),
    SamplerParams(**{**OFF, "temperature": 0.4}),
    SamplerParams(**{**OFF, "top_p": 0.9}),
    SamplerParams(**{**OFF, "min_p": 0.1}),
    SamplerParams(top_k=0, top_p=0.8, min_p=0.2, temperature=2.0),
    SamplerParams(top_k=5, top_p=0.999, min_p=0.0),
    SamplerParams(repeat_penalty=1.3),
    SamplerParams(**OFF, repeat_penalty=0.7, repeat_last_n=5),
    SamplerParams(**OFF, frequency_penalty=0.5, presence_penalty=0.25, repeat_last_n=-1),
    SamplerParams(**OFF, presence_penalty=-3.0, repeat_last_n=20),
    SamplerParams(repeat_penalty=1.3, repeat_last_n=0),
    SamplerParams(logit_bias={0: 6.0, 3: -math.inf, 17: -2.0}),
    SamplerParams(logit_bias={2: 9.0}, repeat_penalty=1.5, frequency_penalty=0.1, temperature=1.0),
]


@pytest.mark.parametrize("params", SETTINGS, ids=range(len(SETTINGS)))
def test_probabilities_follow_the_rules(params):
    rng = np.random.default_rng(11)
    n_vocab, history = 60, rng.integers(0, 60, 90).tolist()
    sampler = Sampler(params, n_vocab, history[:70])
    for token in history[70:]:
        sampler.accept(token)
    for trial in range(5):
        logits = normal_logits(n_vocab, seed=trial)
        logits[trial * 3] = -np.inf
        ids, probs = sampler.probs(logits)
        got = {int(i): p for i, p in zip(ids, probs, strict=True) if p > 0}
        want = naive_probs(params, logits, history)
        assert set(got) == set(want)
        assert max(abs(got[i] - want[i]) for i in want) < 1e-6


@pytest.mark.parametrize("params", SETTINGS[:7], ids=range(7))
def test_sample_draws_from_probs_by_the_documented_rule(params):
    sampler = Sampler(SamplerParams(**{**vars(params), "seed": 99}), 200)
    logits = normal_logits(200, seed=1)
    ids, probs = sampler.probs(logits)
    for position in range(200):
        running, u = 0.0, uniform(99, position)
        for token, p in zip(ids, probs, strict=True):
            running += p
            if running > u:
                assert sampler.sample(logits, position) == token
                break


@pytest.mark.parametrize("params", [SETTINGS[0], SETTINGS[2], SETTINGS[5]], ids=["0", "2", "5"])
def test_frequencies_over_positions_fit_the_distribution(params):
    draws, logits = 4000, normal_logits(30, seed=5, spread=1.5)
    sampler = Sampler(SamplerParams(**{**vars(params), "seed": 7}), 30)
    counts = Counter(sampler.sample(logits, position) for position in range(draws))
    want = naive_probs(params, logits, [])
    assert set(counts) <= set(want)
    expected = {i: draws * p for i, p in want.items() if draws * p >= 5}
    chi_square = sum((counts[i] - e) ** 2 / e for i, e in expected.items())
    freedom = len(expected)
    assert chi_square < freedom + 5 * math.sqrt(2 * freedom)


def test_a_seed_repeats_and_another_differs():
    logits = [normal_logits(500, seed=i) for i in range(40)]

    def tokens(seed):
        sampler = Sampler(SamplerParams(seed=seed, top_k=0, top_p=1.0, min_p=0.0), 500)
        return [sampler.sample(row, position) for position, row in enumerate(logits)]

    assert tokens(3) == tokens(3)
    assert tokens(3) != tokens(4)


def test_a_draw_does_not_depend_on_the_draws_before():
    sampler = Sampler(SamplerParams(seed=12), 500)
    logits = normal_logits(500, seed=2)
    forward = {position: sampler.sample(logits, position) for position in range(50)}
    backward = {position: sampler.sample(logits, position) for position in reversed(range(50))}
    assert forward == backward
    assert len(set(forward.values())) > 1


def test_an_open_seed_is_drawn_once_and_reported():
    sampler = Sampler(SamplerParams(), 500)
    again = Sampler(SamplerParams(seed=sampler.seed), 500)
    logits = normal_logits(500, seed=4)
    for position in range(30):
        assert sampler.sample(logits, position) == again.sample(logits, position)
    assert len({Sampler(SamplerParams(), 500).seed for _ in range(8)}) > 1
    assert Sampler(SamplerParams(seed=2**64 - 1), 500).seed == 2**64 - 1


@pytest.mark.parametrize("params", SETTINGS, ids=range(len(SETTINGS)))
def test_sampling_changes_neither_logits_nor_state(params):
    sampler = Sampler(SamplerParams(**{**vars(params), "seed": 1}), 60, [1, 2, 3, 2])
    logits = normal_logits(60, seed=8)
    before = logits.copy()
    first = [sampler.sample(logits, 5), *sampler.probs(logits)[0]]
    logits.flags.writeable = False
    assert [sampler.sample(logits, 5), *sampler.probs(logits)[0]] == first
    assert (logits == before).all()


def test_masked_tokens_are_never_chosen():
    logits = np.full(2000, -np.inf, np.float32)
    logits[[3, 1500]] = 0.0
    for fields in ({}, OFF, {**OFF, "top_p": 0.9999}, {**OFF, "min_p": 0.01}):
        sampler = Sampler(SamplerParams(**{**fields, "seed": 2}), 2000)
        chosen = {sampler.sample(logits, position) for position in range(64)}
        assert chosen == {3, 1500}


# Greedy


def greedy(**fields):
    return SamplerParams(temperature=0.0, **fields)


def test_greedy_takes_the_first_of_equal_maxima():
    logits = np.array([0.0, 2.0, 1.0, 2.0], np.float32)
    sampler = Sampler(greedy(), 4)
    assert sampler.sample(logits, 0) == 1
    ids, probs = sampler.probs(logits)
    assert (ids.tolist(), probs.tolist()) == ([1], [1.0])


def test_greedy_comes_after_bias_and_penalties():
    logits = np.array([1.0, 2.0, 1.9, -1.0], np.float32)
    assert Sampler(greedy(logit_bias={3: 5.0}), 4).sample(logits, 0) == 3
    assert Sampler(greedy(logit_bias={1: -math.inf}), 4).sample(logits, 0) == 2
    penalized = Sampler(greedy(repeat_penalty=1.5), 4, [1])
    assert penalized.sample(logits, 0) == 2
    penalized.accept(2)
    assert penalized.sample(logits, 0) == 1
    assert Sampler(greedy(frequency_penalty=0.6), 4, [1, 2, 2]).sample(logits, 0) == 1
    assert Sampler(greedy(repeat_penalty=1.5, repeat_last_n=1), 4, [1, 0]).sample(logits, 0) == 1


def test_greedy_ignores_the_truncating_steps():
    logits = normal_logits(300, seed=6)
    params = greedy(top_k=1, top_p=0.01, min_p=1.0)
    assert Sampler(params, 300).sample(logits, 0) == int(logits.argmax())


# History


@pytest.mark.parametrize("limit", [-1, 0, 1, 7, 64])
def test_window_counts_like_a_recount(limit):
    tokens = np.random.default_rng(limit + 1).integers(0, 12, 300).tolist()
    window = TokenWindow(limit, tokens[:20])
    for end in range(20, len(tokens)):
        kept = tokens[:end] if limit == -1 else tokens[max(0, end - limit) : end]
        counts = dict(zip(window.ids.tolist(), window.counts.tolist(), strict=True))
        assert counts == dict(Counter(kept))
        window.push(tokens[end])


def test_window_grows_with_distinct_tokens():
    window = TokenWindow(-1, [])
    for token in range(500):
        window.push(token)
    assert window.ids.tolist() == list(range(500))
    assert window.counts.tolist() == [1] * 500


def test_a_copied_window_shares_nothing():
    window = TokenWindow(-1, [1, 2, 2])
    copy = window.copy()
    copy.push(2)
    window.push(1)
    assert (window.ids.tolist(), window.counts.tolist()) == ([1, 2], [2, 2])
    assert (copy.ids.tolist(), copy.counts.tolist()) == ([1, 2], [1, 3])


def test_a_clone_has_a_history_of_its_own():
    penalties = {"repeat_penalty": 2.0, "frequency_penalty": 0.5, "repeat_last_n": 4}
    params = SamplerParams(**OFF, **penalties, seed=1)
    logits = normal_logits(50, seed=9)
    original = Sampler(params, 50, [1, 2, 3])
    clone = original.clone()
    assert clone.seed == original.seed
    before = original.probs(logits)
    for token in (4, 5, 6, 7, 8):
        clone.accept(token)
    after = original.probs(logits)
    assert all((a == b).all() for a, b in zip(before, after, strict=True))
    want = Sampler(params, 50, [1, 2, 3, 4, 5, 6, 7, 8]).probs(logits)
    got = clone.probs(logits)
    assert dict(zip(*got, strict=True)) == dict(zip(*want, strict=True))
    original.accept(9)
    assert all((a == b).all() for a, b in zip(got, clone.probs(logits), strict=True))
