"""A world without clocks in which drafting has given costs and acceptance, for what decides how
much is drafted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from riverrun.engine.buckets import token_bucket
from riverrun.speculative.adaptive import Budget, Length, Times

COMMON = 0.1  # of a one-token pass: what every round takes beside it
Phase = tuple[int, float]  # tokens, and the chance that a draft stays once those before it have


@dataclass(frozen=True)
class World:
    """draft: cost of drafting a token; slope: what each further token adds to a pass; both in
    one-token passes. beside: what a round with drafts takes more, beside both. noise: relative
    deviation of times. stalls: share of passes that take five times as long. cold: how much longer
    the first pass takes; what each later one does is half of that."""

    draft: float
    slope: float
    beside: float = 0.0
    noise: float = 0.1
    stalls: float = 0.0
    cold: float = 0.0

    def pass_s(self, tokens: int) -> float:
        """A pass takes as long as the largest of its plan."""
        return 1 + self.slope * (token_bucket(tokens) - 1)

    def rate(self, k: int, chance: float) -> float:
        """Expected tokens a second with k drafts a round."""
        tokens = sum(chance**i for i in range(k + 1))
        return tokens / (self.pass_s(1 + k) + k * self.draft + (k > 0) * self.beside)

    def fixed(self, k: int, phases: Sequence[Phase]) -> float:
        """Expected seconds with k drafts in every round."""
        return sum(n / self.rate(k, chance) for n, chance in phases)

    def best(self, most: int, phases: Sequence[Phase]) -> float:
        """Expected seconds of the best fixed number of drafts, none included."""
        return min(self.fixed(k, phases) for k in range(most + 1))


@dataclass
class Run:
    """A text decoded in a world. seconds: for exactly the tokens of the phases."""

    seconds: float = 0.0
    lengths: list[int] = field(default_factory=list)


def decode(world: World, phases: Sequence[Phase], most: int, seed: int, least: int = 0) -> Run:
    """Decode with drafts of the length that is chosen in each round."""
    rng = random.Random(seed)
    times, budget = Times(), Budget()
    length = Length(times, budget, most, least)
    chances = [chance for n, chance in phases for _ in range(n)]
    run, done = Run(), 0

    def noisy(seconds: float) -> float:
        width = world.noise * 3**0.5
        return seconds * (1 + rng.uniform(-width, width))

    while done < len(chances):
        budget.earn()
        k = length.choose()
        drafting, passing = noisy(k * world.draft), noisy(world.pass_s(1 + k))
        passing *= 1 + world.cold * 0.5 ** len(run.lengths)
        if rng.random() < world.stalls:
            passing *= 5
        accepted = 0
        while accepted < k and rng.random() < chances[done]:
            accepted += 1
        beside = COMMON + (k > 0) * world.beside
        times.note(1 + k, passing)
        times.note_beside(k > 0, beside)
        if k:
            length.note(k, accepted, drafting)
        run.seconds += drafting + passing + beside - COMMON
        run.lengths.append(k)
        done += 1 + accepted
    run.seconds *= len(chances) / done
    return run
