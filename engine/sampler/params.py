"""What a caller may ask of the sampler, and the check of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from typing import Any, TypedDict

from ...graph.errors import RequestError
from ...graph.fields import check_fields, integer, is_integer, is_number, number, option
from ...graph.random import MAX_SEED

_INT_MAX = 2**31 - 1


def read_bias(texts: Sequence[str]) -> dict[int, float]:
    """A logit bias from texts of the form ID=VALUE; the last one for a token counts. Raises
    ValueError."""
    bias: dict[int, float] = {}
    for text in texts:
        token, _, value = text.partition("=")
        try:
            bias[int(token)] = float(value)
        except ValueError:
            raise ValueError(f"expected ID=VALUE, got {text!r}") from None
        if int(token) < 0 or not float(value) < math.inf:
            raise ValueError(f"expected an id >= 0 and a finite number or -inf, got {text!r}")
    return bias


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

    temperature: float = option(
        0.8,
        "--temp",
        help="Temperature; 0: greedy.",
        check=number("a finite number >= 0, 0 for greedy", lambda v: v >= 0),
    )
    top_k: int = option(
        40,
        "--top-k",
        help="Keep the k likeliest tokens; 0: all.",
        check=integer(-_INT_MAX - 1, _INT_MAX, "<= 0 turns it off"),
    )
    top_p: float = option(
        0.95,
        "--top-p",
        help="Keep this much probability; 1: all.",
        check=number("a number in (0, 1], 1 turns it off", lambda v: 0 < v <= 1),
    )
    min_p: float = option(
        0.05,
        "--min-p",
        help="Least probability relative to the likeliest token; 0: off.",
        check=number("a number in [0, 1], 0 turns it off", lambda v: 0 <= v <= 1),
    )
    repeat_penalty: float = option(
        1.0,
        "--repeat-penalty",
        help="Divides logits of recent tokens; 1: off.",
        check=number("a finite number > 0, 1 turns it off", lambda v: v > 0),
    )
    repeat_last_n: int = option(
        64,
        "--repeat-last-n",
        help="Tokens that penalties look back on; -1: all, 0: off.",
        check=integer(-1, _INT_MAX, "0 turns it off, -1 means everything"),
    )
    frequency_penalty: float = option(
        0.0,
        "--frequency-penalty",
        help="Subtracted once per recent occurrence; 0: off.",
        check=number("a finite number, 0 turns it off"),
    )
    presence_penalty: float = option(
        0.0,
        "--presence-penalty",
        help="Subtracted from tokens seen recently; 0: off.",
        check=number("a finite number, 0 turns it off"),
    )
    seed: int | None = option(
        None,
        "--seed",
        metavar="S",
        help="Seed; -1: a random one.",
        unset=-1,
        check=integer(0, MAX_SEED, "None for a random one"),
    )
    logit_bias: Mapping[int, float] = option(
        MISSING,
        "--logit-bias",
        metavar="ID=VALUE",
        help="Added to a token's logit, -inf bans it; repeatable.",
        factory=dict,
        repeatable=True,
        read=read_bias,
    )

    @property
    def greedy(self) -> bool:
        """True when the largest logit is taken and nothing is drawn."""
        return self.temperature <= 0

    @property
    def penalizes(self) -> bool:
        """True when a penalty can change a logit, so that the token history matters."""
        values = (self.repeat_penalty, self.frequency_penalty, self.presence_penalty)
        return self.repeat_last_n != 0 and values != (1.0, 0.0, 0.0)

    @property
    def only_lowers(self) -> bool:
        """True when penalties raise no logit."""
        return self.repeat_penalty >= 1 and min(self.frequency_penalty, self.presence_penalty) >= 0

    def validate(self, n_vocab: int) -> None:
        """Raises RequestError naming the field, the range wanted and the value got."""
        check_fields(self)
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


def make_params(given: Mapping[str, Any]) -> SamplerParams:
    """Parameters from keyword arguments. Raises RequestError for a name that is none."""
    known = [f.name for f in fields(SamplerParams)]
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise RequestError(f"{name!r} is no option of generate; {hint}")
    return SamplerParams(**given)


def _check_bias(bias: object, n_vocab: int) -> None:
    if not isinstance(bias, Mapping):
        raise RequestError(f"logit_bias: expected a mapping of token id to number, got {bias!r}")
    for token, value in bias.items():
        if not (is_integer(token) and 0 <= token < n_vocab):
            raise RequestError(
                f"logit_bias: expected token ids, integers in 0 .. {n_vocab - 1}, got {token!r}"
            )
        if not (is_number(value) and value < math.inf):
            raise RequestError(
                f"logit_bias of token {token}: expected a finite number, or -inf to ban it, "
                f"got {value!r}"
            )
