"""Deciding how much of a draft stays: pure rules over the target's logits, or over what it chooses.

A rule yields the tokens of a round, each one chosen: drafts that stay, then one more. Rows are the
target's logits f32 [k + 1, n], of which row i is for the token after i drafts, at position + i.
Rules that go by what plain decoding would choose for each row need no logits where a device
chooses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest

import numpy as np

from ..engine.chooser import Chooser
from ..engine.sampler.chain import draw as draw_index
from ..graph.errors import RequestError
from ..graph.random import uniform
from .drafter import Distribution, Draft
from .known import MATCH, REJECTION

ACCEPTING, REPLACING = 1, 3  # streams of random numbers; chain.DRAFTING is another
Rule = Callable[[Chooser, np.ndarray, Draft, int], Iterator[int]]


class ByChoice(ABC):
    """A rule that goes by what plain decoding would choose."""

    @abstractmethod
    def by_choice(
        self, chooser: Chooser, choices: Iterable[int], draft: Draft, position: int
    ) -> Iterator[int]:
        """The tokens of a round. choices: what the target would choose for each row, found as it is
        asked for, and not accepted by the chooser yet."""

    def reads_logits(self, chooser: Chooser) -> bool:
        """Whether it has to see logits to judge drafts for this chooser."""
        return False

    def __call__(
        self, chooser: Chooser, logits: np.ndarray, draft: Draft, position: int
    ) -> Iterator[int]:
        """The same from logits."""
        choices = (chooser.find(row, position + i) for i, row in enumerate(logits))
        return self.by_choice(chooser, choices, draft, position)


class Match(ByChoice):
    """Choose as without drafts; a draft stays when it is the token chosen. So the tokens are those
    of plain decoding, with a seed too."""

    def by_choice(
        self, chooser: Chooser, choices: Iterable[int], draft: Draft, position: int
    ) -> Iterator[int]:
        """Drafts up to the first that was not chosen, and what was."""
        for token, drafted in zip_longest(choices, draft.tokens):
            chooser.accept(token)
            yield token
            if token != drafted:
                return


class Reject(Match):
    """Keep draft x with probability min(1, p(x) / q(x)), else draw from max(p - q, 0), p being the
    target's distribution and q the one that x was drawn from; the result is distributed as p.

    Drafts without distributions go by `match`. Source: Leviathan, Kalman & Matias 2023."""

    def reads_logits(self, chooser: Chooser) -> bool:
        """Where drafts may be drawn."""
        return not chooser.sampler.params.greedy

    def __call__(
        self, chooser: Chooser, logits: np.ndarray, draft: Draft, position: int
    ) -> Iterator[int]:
        """The tokens of a round."""
        if draft.distributions is None or chooser.sampler.params.greedy:
            return super().__call__(chooser, logits, draft, position)
        return self._drawn(chooser, logits, draft.tokens, draft.distributions, position)

    def _drawn(
        self,
        chooser: Chooser,
        logits: np.ndarray,
        drafted: Sequence[int],
        distributions: Sequence[Distribution],
        position: int,
    ) -> Iterator[int]:
        for i, (x, q) in enumerate(zip(drafted, distributions, strict=True)):
            token = judge(x, chooser.probs(logits[i], position + i), q, chooser, position + i)
            chooser.accept(token)
            yield token
            if token != x:
                return
        yield chooser.choose(logits[len(drafted)], position + len(drafted))


match, reject = Match(), Reject()


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
