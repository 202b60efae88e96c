"""How tokens are chosen and what ends a text: the fields that all interfaces over HTTP share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from ...engine import Model, SamplerParams
from ...graph.errors import RequestError
from ...graph.random import MAX_SEED
from ..failures import bad_request
from .body import Body

MOST_STOPS, MOST_STOP_LENGTH, MOST_BIASED = 64, 1024, 4096
Stop = str | list[str] | None
# What OpenAI's clients may send for any request, and what answers do not depend on.
OPENAI_IGNORED = frozenset(
    {
        *("user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key"),
        *("prompt_cache_retention", "id_slot", "cache_reuse", "include", "t_max_predict_ms"),
        *("reasoning_format", "response_fields", "n_keep", "n_discard", "slot_id"),
    }
)
# llama-server's samplers that are not here, at the values that turn them off.
SAMPLERS_REFUSED: dict[str, tuple[Any, ...]] = {
    "mirostat": (0,),
    "mirostat_tau": (5.0, 5),
    "mirostat_eta": (0.1,),
    "dry_multiplier": (0.0, 0),
    "dry_base": (1.75,),
    "dry_allowed_length": (2,),
    "dry_penalty_last_n": (-1, 0, 64),
    "dry_sequence_breakers": (),
    "xtc_probability": (0.0, 0),
    "xtc_threshold": (0.1,),
    "typical_p": (1.0, 1),
    "typ_p": (1.0, 1),
    "top_n_sigma": (-1.0, -1),
    "tfs_z": (1.0, 1),
    "dynatemp_range": (0.0, 0),
    "dynatemp_exponent": (1.0, 1),
    "adaptive_target": (-1.0, -1),
    "samplers": (),
    "min_keep": (0,),
    "lora": (),
    "n_indent": (0,),
    "t_max_prompt_ms": (-1,),
}


def _whole(value: Any) -> Any:
    """Clients write whole numbers with a fraction of zero."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]


class Sampling(Body):
    """The fields of SamplerParams under the names of OpenAI and llama-server, and what ends a
    text."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: Whole | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    repetition_penalty: float | None = Field(None, description="Another name of repeat_penalty.")
    repeat_last_n: Whole | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: Whole | None = Field(None, description="-1 or null: a random one.")
    logit_bias: dict[str, Any] | list[Any] | None = Field(
        None, description="{id: bias}, or llama-server's [[id or text, bias or false], ...]."
    )
    stop: Stop = None
    ignore_eos: bool | None = None
    cache_prompt: bool | None = None
    speculative: bool | str | None = Field(
        None, description="false: without drafts; names of drafters that the server has: only those"
    )
    speculative_n_max: Whole | None = Field(None, alias="speculative.n_max", ge=0, le=256)

    def stops(self) -> tuple[str, ...]:
        """The texts that end it. Raises ApiError for too many, or too long ones."""
        found = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        if len(found) > MOST_STOPS or any(len(text) > MOST_STOP_LENGTH for text in found):
            raise bad_request(
                f"stop: at most {MOST_STOPS} texts of {MOST_STOP_LENGTH} characters", "stop"
            )
        return tuple(text for text in found if text)

    def chosen(self, model: Model, defaults: SamplerParams) -> dict[str, Any]:
        """Keyword arguments of `Engine.submit`, what the request does not say taken from defaults.
        Raises ApiError, and RequestError where a value is out of range."""
        penalty = self.repeat_penalty
        given = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repeat_penalty": self.repetition_penalty if penalty is None else penalty,
            "repeat_last_n": self.repeat_last_n,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            "seed": _seed(self.seed),
            "logit_bias": read_bias(model, self.logit_bias),
        }
        found = {**vars(defaults), **{k: v for k, v in given.items() if v is not None}}
        if found["top_p"] == 0:
            found |= {"top_p": 1.0, "top_k": 1}  # OpenAI's range has 0: the likeliest alone
        params = SamplerParams(**found)
        params.validate(model.tokenizer.n_vocab or model.n_vocab)
        return found


def _seed(seed: int | None) -> int | None:
    """Clients know seeds of 64 bits with a sign, and llama.cpp 0xFFFFFFFF for a random one."""
    return None if seed in (None, -1, 0xFFFFFFFF) else int(seed or 0) & MAX_SEED


def read_bias(model: Model, given: Any) -> dict[int, float] | None:
    """A logit bias from OpenAI's mapping or llama-server's list of pairs. Raises ApiError."""
    if given is None:
        return None
    pairs = list(given.items()) if isinstance(given, Mapping) else list(given)
    if len(pairs) > MOST_BIASED:
        raise bad_request(f"logit_bias: at most {MOST_BIASED} tokens", "logit_bias")
    found: dict[int, float] = {}
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise bad_request(f"logit_bias: expected pairs of token and bias, got {pair!r}")
        for token in _biased(model, pair[0], isinstance(given, Mapping)):
            found[token] = _bias(pair[1])
    return found


def _biased(model: Model, token: Any, mapping: bool) -> list[int]:
    """The tokens that an entry names: keys of JSON objects are texts."""
    if isinstance(token, str):
        if not mapping:
            return model.tokenizer.encode(token, add_special=False)
        try:
            return [int(token)]
        except ValueError:
            token = repr(token)
    elif isinstance(token, int) and not isinstance(token, bool):
        return [token]
    raise bad_request(f"logit_bias: expected a token id, got {token}", "logit_bias")


def _bias(value: Any) -> float:
    if value is False:
        return -math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise bad_request(f"logit_bias: expected a finite number, got {value!r}", "logit_bias")
    return -math.inf if value <= -100 else float(value)


def check_tokens(name: str, value: int | None) -> int:
    """The number of tokens wanted, -1 for any. Raises RequestError."""
    if value is None or value == -1:
        return -1
    if value < 0:
        raise RequestError(f"{name}: expected -1, 0 or more, got {value}", name)
    return value
