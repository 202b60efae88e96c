"""What a caller may ask of the sampler, and the check of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, TypedDict

from ...graph.errors import RequestError
from ...graph.random import MAX_SEED

_INT_MAX = 2**31 - 1


@dataclass(frozen=True)
class SamplerParams:
    """Sampling parameters under the names and defaults of llama.cpp and the OpenAI API.

    temperature        divides the logits; 0 = greedy
    top_k              keeps the k largest logits; <= 0 = off
    top_p              keeps the likeliest tokens up to this sum of probability; 1 = off
    min_p              keeps tokens at least this likely relative to the likeliest; 0 = off
    repeat_penalty     divides (multiplies, if negative) logits of tokens in the window; 1 = off
    repeat_last_n      length in tokens of the window of all three penalties, over the prompt and
                       what was generated; 0 = off, -1 = everything
    frequency_penalty  subtracted once per occurrence in the window; 0 = off
    presence_penalty   subtracted once if the token is in the window; 0 = off
    seed               None = drawn from the system, and then shown by `Sampler.seed`
    logit_bias         token id -> added to its logit before all else; -inf bans the token
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    @property
    def greedy(self) -> bool:
        """True when the largest logit is taken and nothing is drawn."""
        return self.temperature <= 0

    @property
    def penalizes(self) -> bool:
        """True when a penalty can change a logit, so that the token history matters."""
        values = (self.repeat_penalty, self.frequency_penalty, self.presence_penalty)
        return self.repeat_last_n != 0 and values != (1.0, 0.0, 0.0)

    def validate(self, n_vocab: int) -> None:
        """Raises RequestError naming the field, the range wanted and the value got."""
        for name, fits, want in _NUMBERS:
            value = getattr(self, name)
            if not (_is_number(value) and math.isfinite(value) and fits(value)):
                raise RequestError(f"{name}: expected {want}, got {value!r}")
        for name, low, high, note in _INTEGERS:
            value = getattr(self, name)
            if name == "seed" and value is None:
                continue
            if not (_is_integer(value) and low <= value <= high):
                raise RequestError(
                    f"{name}: expected an integer in {low} .. {high} ({note}), got {value!r}"
                )
        _check_bias(self.logit_bias, n_vocab)


class Sampling(TypedDict, total=False):
    """The fields of SamplerParams as keyword arguments, for type checkers."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    repeat_last_n: int
    frequency_penalty: float
    presence_penalty: float
    seed: int | None
    logit_bias: Mapping[int, float]


_NUMBERS: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    ("temperature", lambda v: v >= 0, "a finite number >= 0, 0 for greedy"),
    ("top_p", lambda v: 0 < v <= 1, "a number in (0, 1], 1 turns it off"),
    ("min_p", lambda v: 0 <= v <= 1, "a number in [0, 1], 0 turns it off"),
    ("repeat_penalty", lambda v: v > 0, "a finite number > 0, 1 turns it off"),
    ("frequency_penalty", lambda v: True, "a finite number, 0 turns it off"),
    ("presence_penalty", lambda v: True, "a finite number, 0 turns it off"),
)

_INTEGERS: tuple[tuple[str, int, int, str], ...] = (
    ("top_k", -_INT_MAX - 1, _INT_MAX, "<= 0 turns it off"),
    ("repeat_last_n", -1, _INT_MAX, "0 turns it off, -1 means everything"),
    ("seed", 0, MAX_SEED, "None for a random one"),
)


def make_params(given: Mapping[str, Any]) -> SamplerParams:
    """Parameters from keyword arguments. Raises RequestError for a name that is none."""
    known = [f.name for f in fields(SamplerParams)]
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise RequestError(f"{name!r} is no option of generate; {hint}")
    return SamplerParams(**given)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _check_bias(bias: object, n_vocab: int) -> None:
    if not isinstance(bias, Mapping):
        raise RequestError(f"logit_bias: expected a mapping of token id to number, got {bias!r}")
    for token, value in bias.items():
        if not (_is_integer(token) and 0 <= token < n_vocab):
            raise RequestError(
                f"logit_bias: expected token ids, integers in 0 .. {n_vocab - 1}, got {token!r}"
            )
        if not (_is_number(value) and value < math.inf):
            raise RequestError(
                f"logit_bias of token {token}: expected a finite number, or -inf to ban it, "
                f"got {value!r}"
            )
