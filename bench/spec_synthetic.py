"""Acceptance by the toss of a coin, for measuring what speculation costs at a given acceptance.

What comes out is not the model's output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine import Model
from ..engine.chooser import Chooser
from ..graph.errors import RequestError
from ..graph.random import uniform
from ..speculative import Ask, Draft, Drafter, Setup, Speculation
from ..speculative.acceptance import ByChoice
from ..speculative.chain import ChainDrafter

SEED = 1
TOSSES = 4  # the stream of random numbers, beside those of acceptance and drafting
_FILLING = 4093  # random tokens that are gone through again and again; a prime


@dataclass(frozen=True)
class Coins(ByChoice):
    """A rule of acceptance (`Speculation.rule`): draft i stays, once those before it have, with
    probability rates[i], or the last rate beyond these. n_vocab: tokens that may be chosen.

    Each row is chosen from as in plain decoding, so that the cost of choosing counts, and by a
    device where that would. Raises RequestError for rates outside 0 .. 1."""

    rates: tuple[float, ...]
    n_vocab: int

    def __post_init__(self) -> None:
        if not self.rates or not all(0.0 <= rate <= 1.0 for rate in self.rates):
            raise RequestError(f"acceptance rates should be 0 to 1, got {list(self.rates)}")

    def by_choice(
        self, chooser: Chooser, choices: Iterable[int], draft: Draft, position: int
    ) -> Iterator[int]:
        """The drafts that stay, then one token more that differs from the next draft."""
        seed = chooser.sampler.seed
        for i, token in enumerate(choices):
            drafted = draft.tokens[i] if i < len(draft.tokens) else None
            stays = drafted is not None and self.stays(i, position + i, seed)
            if drafted is not None and stays:
                token = drafted
            elif token == drafted:
                token = (token + 1) % self.n_vocab
            chooser.accept(token)
            yield token
            if not stays:
                return

    def stays(self, i: int, position: int, seed: int) -> bool:
        """Whether draft i, for this position, stays."""
        return uniform(seed, position, TOSSES) < self.rates[min(i, len(self.rates) - 1)]


class SyntheticSpeculation(Speculation):
    """A speculation whose last drafter always proposes as much as it is asked for: what it has no
    idea of is filled with random tokens. Drafters that are models have an idea always."""

    @property
    def drafters(self) -> list[type[Drafter]]:
        """As without, the last one filled."""
        *others, last = super().drafters
        return [*others, last if issubclass(last, ChainDrafter) else _filled(last)]


def _filled(cls: type[Drafter]) -> type[Drafter]:
    class Filled(cls):  # type: ignore[misc, valid-type]
        @classmethod
        def open(cls, setup: Setup) -> Drafter:
            drafter: Any = super().open(setup)
            n_vocab = token_range(setup.target.model)
            drafter.filling = np.random.default_rng(SEED).integers(0, n_vocab, _FILLING).tolist()
            return drafter

        def draft(self, asks: Sequence[Ask]) -> list[Draft]:
            drafts = super().draft(asks)
            return [Draft(self._fill(d.tokens, a)) for d, a in zip(drafts, asks, strict=True)]

        def _fill(self, tokens: list[int], ask: Ask) -> list[int]:
            first = len(ask.context)
            more = range(first, first + ask.limit - len(tokens))
            return [*tokens, *(self.filling[at % _FILLING] for at in more)]

    return Filled


def token_range(model: Model) -> int:
    """Ids below this are tokens; rows of logits beyond are padding."""
    return model.tokenizer.n_vocab or model.n_vocab
