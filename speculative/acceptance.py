"""Deciding how much of a draft stays: pure rules over the target's logits.

A rule yields the tokens of a round, each one chosen: drafts that stay, then one more. Rows are the
target's logits f32 [k + 1, n], of which row i is for the token after i drafts, at position + i."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ..engine.chooser import Chooser
from ..engine.sampler.chain import draw as draw_index
from ..graph.errors import RequestError
from ..graph.random import uniform
from .drafter import Distribution, Draft
from .known import MATCH, REJECTION

ACCEPTING, REPLACING = 1, 3  # streams of random numbers; chain.DRAFTING is another
Rule = Callable[[Chooser, np.ndarray, Draft, int], Iterator[int]]


def match(chooser: Chooser, logits: np.ndarray, draft: Draft, position: int) -> Iterator[int]:
    """Choose as without drafts; a draft stays when it is the token chosen. So the tokens are those
    of plain decoding, with a seed too."""
    for i, row in enumerate(logits):
        token = chooser.choose(row, position + i)
        yield token
        if i == len(draft.tokens) or token != draft.tokens[i]:
            return


def reject(chooser: Chooser, logits: np.ndarray, draft: Draft, position: int) -> Iterator[int]:
    """Keep draft x with probability min(1, p(x) / q(x)), else draw from max(p - q, 0), p being the
    target's distribution and q the one that x was drawn from; the result is distributed as p.

    Drafts without distributions go by `match`. Source: Leviathan, Kalman & Matias 2023."""
    if draft.distributions is None or chooser.sampler.params.greedy:
        yield from match(chooser, logits, draft, position)
        return
    for i, (x, q) in enumerate(zip(draft.tokens, draft.distributions, strict=True)):
        token = judge(x, chooser.probs(logits[i], position + i), q, chooser, position + i)
        chooser.accept(token)
        yield token
        if token != x:
            return
    yield chooser.choose(logits[len(draft.tokens)], position + len(draft.tokens))


def judge(x: int, p: Distribution, q: Distribution, chooser: Chooser, position: int) -> int:
    """x itself, or the token that replaces it."""
    seed = chooser.sampler.seed
    if uniform(seed, position, ACCEPTING) * _of(q, x) < _of(p, x):
        return x
    ids, left = p[0], p[1].copy()
    order = np.argsort(ids)
    at = np.searchsorted(ids, q[0], sorter=order)
    inside = at < ids.size
    places = order[at[inside]]
    same = ids[places] == q[0][inside]
    left[places[same]] -= q[1][inside][same]
    left = np.maximum(left, 0.0)
    # Where rounding leaves nothing, p and q are the same, and p it is.
    weights = left if left.sum() > 0 else p[1]
    return int(ids[draw_index(weights, uniform(seed, position, REPLACING))])


def _of(distribution: Distribution, token: int) -> float:
    ids, p = distribution
    found = np.flatnonzero(ids == token)
    return float(p[found[0]]) if found.size else 0.0


RULES: dict[str, Rule] = {MATCH: match, REJECTION: reject}


def find_rule(name: str) -> Rule:
    """The rule of this name. Raises RequestError listing the known ones."""
    if name not in RULES:
        raise RequestError(
            f"acceptance should be one of {', '.join(RULES)}, got {name!r}", "acceptance"
        )
    return RULES[name]
