"""What tests of the engine share: requests of every kind, and their results when run alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import riverrun as rr
from demo import PROMPTS, demo
from spec_rig import speculation

LONG = [(7 * i + 13) % 4000 + 260 for i in range(1300)]  # beyond two chunks of 512
GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
# Arguments of Engine.submit.
SPECS: dict[str, dict[str, Any]] = {
    "greedy": {"prompt": PROMPTS["p17"]["ids"], "max_tokens": 24, **GREEDY},
    "short": {"prompt": PROMPTS["p3"]["ids"], "max_tokens": 5, **GREEDY},
    "long": {"prompt": LONG, "max_tokens": 9, **GREEDY},
    "chunk": {"prompt": LONG[:512], "max_tokens": 7, **GREEDY},
    "over": {"prompt": LONG[:513], "max_tokens": 7, **GREEDY},
    "none": {"prompt": PROMPTS["p17"]["ids"], "max_tokens": 0, **GREEDY},
    "sampled": {"prompt": PROMPTS["p64"]["ids"], "max_tokens": 20, "seed": 11, "ignore_eos": True},
    "hot": {
        "prompt": PROMPTS["p200"]["ids"],
        "max_tokens": 16,
        "seed": 3,
        "temperature": 1.4,
        "top_k": 0,
        "ignore_eos": True,
    },
    "penalties": {
        "prompt": PROMPTS["p17"]["ids"],
        "max_tokens": 20,
        "repeat_penalty": 1.3,
        "frequency_penalty": 0.2,
        **GREEDY,
    },
    "bias": {
        "prompt": PROMPTS["p64"]["ids"],
        "max_tokens": 12,
        "seed": 8,
        "logit_bias": {300: 2.0, 198: -4.0},
        "ignore_eos": True,
    },
    "stop": {"prompt": PROMPTS["p17"]["text"], "max_tokens": 60, "stop": ["return", "zz"]} | GREEDY,
    "end": {"prompt": PROMPTS["p17"]["text"], "max_tokens": 40, "temperature": 0.0},
}
DRAFTED: dict[str, tuple[str, ...]] = {
    "mtp": ("mtp",),
    "ngram": ("ngram-mod",),
    "both": ("ngram-mod", "mtp"),
    "draft": ("draft",),
}
_solo: dict[tuple[int, str], rr.Result] = {}


def drafted(kinds: tuple[str, ...], draft_max: int = 4) -> dict[str, Any]:
    """The same prompts with drafts."""
    return {"speculative": speculation(kinds, draft_max)}


def solo(model: rr.Model, spec: Mapping[str, Any], **more: Any) -> rr.Result:
    """The result of a request that runs alone, without drafts, computed once."""
    key = id(model), repr(sorted(spec.items(), key=lambda item: item[0]))
    if key not in _solo:
        options = {"ignore_eos": True, **spec}
        _solo[key] = model.generate(n_ctx=1536, **options, **more).result
    return _solo[key]


def finish(engine: rr.Engine) -> None:
    """Step until nothing is left."""
    while not engine.idle:
        engine.step()


def constrained() -> dict[str, Any]:
    """A request whose text must match a pattern; needs llguidance."""
    rule = demo().constraint("regex", r"[a-z]{3,9}( = [0-9]{1,4})?")
    return {"prompt": PROMPTS["p17"]["text"], "max_tokens": 30, "constraint": rule, **GREEDY}
