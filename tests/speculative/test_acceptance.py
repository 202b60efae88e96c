"""Acceptance leaves the target's distribution as it is, by counting over fixed seeds, and decides
single cases as the rules say."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from riverrun.engine.chooser import Chooser
from riverrun.engine.sampler import Sampler, SamplerParams
from riverrun.engine.sampler.chain import draw
from riverrun.graph.errors import RequestError
from riverrun.graph.random import uniform
from riverrun.speculative.acceptance import RULES, Rule, find_rule, match, reject
from riverrun.speculative.chain import DRAFTING
from riverrun.speculative.drafter import Distribution, Draft

V = 16
SAMPLES = 200_000
OPEN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
FILTERS = {
    "top_k": OPEN | {"top_k": 5},
    "top_p": OPEN | {"top_p": 0.7, "temperature": 0.8},
    "all": {"temperature": 1.3, "top_k": 9, "top_p": 0.9, "min_p": 0.05},
}
ALL = np.arange(V)


def limit(df: int, z: float = 4.5) -> float:
    """The chi-square that chance exceeds once in 300 000 times (Wilson & Hilferty 1931)."""
    return df * (1 - 2 / (9 * df) + z * (2 / (9 * df)) ** 0.5) ** 3


def require_distribution(counts: np.ndarray, p: np.ndarray) -> None:
    """The counts [n] come from the probabilities [n]."""
    n = counts.sum()
    assert n > 200 and counts[p == 0].sum() == 0
    expected = n * p
    rare = expected < 8
    # Cells of few expected counts are taken together.
    got = np.append(counts[~rare], counts[rare].sum())
    want = np.append(expected[~rare], expected[rare].sum())
    got, want = got[want > 0], want[want > 0]
    chi = float(((got - want) ** 2 / want).sum())
    assert chi < limit(len(want) - 1), (counts, np.round(expected))


def rows(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits f32 of the first row [V], and of the second by the first token [V, V]."""
    rng = np.random.default_rng(seed)
    return (
        rng.standard_normal(V).astype(np.float32),
        (1.5 * rng.standard_normal((V, V))).astype(np.float32),
    )


def dense(distribution: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """A distribution over all tokens."""
    p = np.zeros(V)
    p[distribution[0]] = distribution[1]
    return p


def chooser(params: dict[str, float], seed: int = 11) -> Chooser:
    return Chooser(Sampler(SamplerParams(seed=seed, **params), V), V)  # type: ignore[arg-type]


def proposals(p: np.ndarray) -> dict[str, Distribution]:
    """Distributions to draft from, of every kind of closeness to p [V]."""
    order = np.argsort(p)
    few = order[: V // 4]
    peaked = np.full(V, 0.1 / (V - 1))
    peaked[order[-1]] = 0.9
    wrong = np.full(V, 0.05 / (V - 1))
    wrong[order[V // 2]] = 0.95
    rng = np.random.default_rng(3)
    shuffled = rng.permutation(V)
    return {
        "equal": (ALL, p),
        "flat": (ALL, np.full(V, 1 / V)),
        "peaked": (ALL, peaked),
        "peaked wrongly": (ALL, wrong),
        "few unlikely": (few, np.full(few.size, 1 / few.size)),
        "ten likely": (order[-10:], p[order[-10:]] / p[order[-10:]].sum()),
        "any order": (shuffled, rng.dirichlet(np.ones(V))[shuffled]),
        "one token": (order[-2:-1], np.ones(1)),
    }


class Counts:
    """First tokens by kind of proposal, second ones by the first, third ones."""

    def __init__(self, n_kinds: int) -> None:
        self.first = np.zeros((n_kinds, V), int)
        self.second = np.zeros((V, V), int)
        self.third = np.zeros(V, int)


def sample(rule: Rule, params: dict[str, float], n: int, drawn: bool = True) -> Counts:
    """Judge n drafts of two tokens; the kinds of proposals take turns at both places."""
    choose = chooser(params)
    first, second = rows(1)
    third = rows(2)[0]
    kinds = list(proposals(dense(choose.probs(first, 0))).values())
    followers = [
        list(proposals(dense(choose.probs(row, 0))).values()) for row in second
    ]  # by first token
    counts = Counts(len(kinds))
    logits = np.stack((first, first, third))
    for i in range(n):
        position, kind = 4 * i, i % len(kinds)
        q1 = kinds[kind]
        x1 = int(q1[0][draw(q1[1], uniform(11, position, DRAFTING))])
        q2 = followers[x1][(i // len(kinds)) % len(kinds)]
        x2 = int(q2[0][draw(q2[1], uniform(11, position + 1, DRAFTING))])
        logits[1] = second[x1]
        draft = Draft([x1, x2], [q1, q2] if drawn else None)
        tokens = list(rule(choose, logits, draft, position))
        counts.first[kind, tokens[0]] += 1
        if len(tokens) > 1:
            counts.second[tokens[0], tokens[1]] += 1
        if len(tokens) > 2:
            counts.third[tokens[2]] += 1
    return counts


def require_target(counts: Counts, params: dict[str, float]) -> None:
    """Every token, at every place and after every other, is distributed as the target says."""
    choose = chooser(params)
    first, second = rows(1)
    p = dense(choose.probs(first, 0))
    require_distribution(counts.first.sum(0), p)
    for kind in counts.first:
        require_distribution(kind, p)
    checked = 0
    for token, found in enumerate(counts.second):
        if found.sum() > 400:
            require_distribution(found, dense(choose.probs(second[token], 0)))
            checked += 1
    assert checked >= 3
    require_distribution(counts.third, dense(choose.probs(rows(2)[0], 0)))


def test_matching_keeps_the_distribution() -> None:
    require_target(sample(match, OPEN, SAMPLES, drawn=False), OPEN)


def test_rejection_keeps_the_distribution() -> None:
    require_target(sample(reject, OPEN, SAMPLES), OPEN)


@pytest.mark.parametrize("name", FILTERS)
def test_rejection_keeps_a_filtered_distribution(name: str) -> None:
    require_target(sample(reject, FILTERS[name], SAMPLES // 8), FILTERS[name])


@pytest.mark.full
@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("rule", RULES)
def test_filtered_distributions_of_many_samples(name: str, rule: str) -> None:
    require_target(sample(RULES[rule], FILTERS[name], SAMPLES), FILTERS[name])


def too_trusting(choose: Chooser, logits: np.ndarray, draft: Draft, position: int) -> Iterator[int]:
    """A wrong rule: keeps every other draft."""
    for i, x in enumerate(draft.tokens):
        kept = uniform(7, position + i, 5) < 0.5
        yield x if kept else choose.choose(logits[i], position + i)
        if not kept:
            return
    yield choose.choose(logits[-1], position + len(draft.tokens))


def without_subtracting(
    choose: Chooser, logits: np.ndarray, draft: Draft, position: int
) -> Iterator[int]:
    """A wrong rule: replaces from p instead of what q leaves of it."""
    assert draft.distributions is not None
    for i, (x, q) in enumerate(zip(draft.tokens, draft.distributions, strict=True)):
        p = dense(choose.probs(logits[i], position + i))
        if uniform(11, position + i, 1) * dense(q)[x] < p[x]:
            yield x
            continue
        yield choose.choose(logits[i], position + i)
        return
    yield choose.choose(logits[-1], position + len(draft.tokens))


@pytest.mark.parametrize("rule", [too_trusting, without_subtracting])
def test_wrong_rules_are_found(rule: Rule) -> None:
    with pytest.raises(AssertionError):
        require_target(sample(rule, OPEN, 20_000), OPEN)


@cache
def kept_share(kind: str) -> float:
    """How often the first draft stays when it is drawn from this kind of proposal."""
    choose, first = chooser(OPEN), rows(1)[0]
    q = proposals(dense(choose.probs(first, 0)))[kind]
    logits, kept = np.stack((first, first)), 0
    for position in range(4000):
        x = int(q[0][draw(q[1], uniform(11, position, DRAFTING))])
        kept += next(reject(choose, logits, Draft([x], [q]), position)) == x
    return kept / 4000


@pytest.mark.parametrize("kind", proposals(np.full(V, 1 / V)))
def test_as_many_drafts_stay_as_can(kind: str) -> None:
    """The sum of min(p, q), the most that any rule can keep; a token that replaces a draft is
    another one, since nothing of it is left."""
    p = dense(chooser(OPEN).probs(rows(1)[0], 0))
    q = dense(proposals(p)[kind])
    assert kept_share(kind) == pytest.approx(np.minimum(p, q).sum(), abs=0.035)
    if kind == "equal":
        assert kept_share(kind) == 1.0


def test_disjoint_proposals_are_always_replaced() -> None:
    params = OPEN | {"top_k": 3}
    choose, row = chooser(params), rows(1)[0]
    p = dense(choose.probs(row, 0))
    outside = np.flatnonzero(p == 0)
    q = (outside, np.full(outside.size, 1 / outside.size))
    counts = np.zeros(V, int)
    for position in range(20_000):
        draft = Draft([int(outside[position % outside.size])], [q])
        (token,) = reject(choose, np.stack((row, row)), draft, position)
        counts[token] += 1
    require_distribution(counts, p)


@pytest.mark.parametrize("rule", RULES)
def test_other_seeds_other_tokens_same_seed_same_tokens(rule: str) -> None:
    first, second = rows(1)
    logits = np.stack((first, second[3], second[5]))
    q = (ALL, np.full(V, 1 / V))

    def run(seed: int) -> list[list[int]]:
        choose = chooser(OPEN, seed)
        return [list(RULES[rule](choose, logits, Draft([3, 5], [q, q]), 3 * i)) for i in range(60)]

    assert run(1) == run(1) != run(2)


@pytest.mark.parametrize("rule", RULES)
def test_the_distribution_over_seeds(rule: str) -> None:
    """One position, many seeds: no other draw of the position gets in the way."""
    first, second = rows(1)
    logits, q = np.stack((first, second[3])), (ALL, np.full(V, 1 / V))
    counts = np.zeros(V, int)
    for seed in range(12_000):
        x = draw(q[1], uniform(seed, 40, DRAFTING))
        tokens = list(RULES[rule](chooser(OPEN, seed), logits, Draft([x], [q]), 40))
        counts[tokens[0]] += 1
    require_distribution(counts, dense(chooser(OPEN).probs(first, 0)))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("right", range(4))
def test_greedy_keeps_what_is_likeliest(rule: str, right: int) -> None:
    logits = np.stack([np.eye(V, dtype=np.float32)[t] for t in (4, 9, 2, 7)])
    tokens = [4, 9, 2]
    if right < 3:
        tokens[right] += 1
    found = list(RULES[rule](chooser({"temperature": 0.0}), logits, Draft(tokens), 5))
    assert found == [4, 9, 2, 7][: right + 1]


def test_without_distributions_rejection_is_matching() -> None:
    first, second = rows(1)
    logits = np.stack((first, second[3], second[5]))
    for position in range(0, 600, 3):
        draft = Draft([3, 5])
        assert list(reject(chooser(OPEN), logits, draft, position)) == list(
            match(chooser(OPEN), logits, draft, position)
        )


def test_matching_chooses_as_without_drafts() -> None:
    choose, (first, second) = chooser(FILTERS["all"]), rows(1)
    for position in range(0, 3000, 3):
        plain = choose.choose(first, position)
        then = choose.choose(second[plain], position + 1)
        for x in (plain, (plain + 1) % V):
            found = list(match(choose, np.stack((first, second[plain])), Draft([x]), position))
            assert found == ([plain, then] if x == plain else [plain])


@pytest.mark.parametrize("rule", RULES)
def test_what_is_not_taken_is_not_accepted(rule: str) -> None:
    """A sampler with penalties sees the tokens that were asked for, and no others."""
    params = OPEN | {"frequency_penalty": 50.0, "temperature": 0.5}
    first, second = rows(1)
    logits = np.stack((first, second[3], second[5]))
    likeliest = int(first.argmax())
    choose = chooser(params)
    draft = Draft([likeliest, 1], [(ALL, np.eye(V)[likeliest])] * 2)
    tokens = RULES[rule](choose, logits, draft, 0)
    taken = next(tokens)
    tokens.close()
    p = dense(choose.probs(np.zeros(V, np.float32), 9))
    assert p[taken] < 1e-9 and np.all(p[taken != ALL] > 0.01)


def test_unknown_rules_are_refused() -> None:
    with pytest.raises(RequestError, match="one of match, rejection, got 'mach'"):
        find_rule("mach")
