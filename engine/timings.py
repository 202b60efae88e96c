"""Timings of a request under llama.cpp's field names."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any


@dataclass
class Timings:
    """cache_n: prompt tokens reused; cache_note: why not all that could have been; prompt_n:
    evaluated; paused_n: how often its sequence was taken from it for want of pages; times in
    milliseconds.

    predicted_ms runs from the first sampled token to the last, so rates of prediction divide by
    predicted_n - 1: the first token comes with the prompt. extra: what drafts add."""

    cache_n: int = 0
    cache_note: str = ""
    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0
    paused_n: int = 0
    extra: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """All fields, with the derived rates; a rate without a divisor is 0.0."""
        steps = max(0, self.predicted_n - 1)
        return {
            "cache_n": self.cache_n,
            **({"cache_note": self.cache_note} if self.cache_note else {}),
            "prompt_n": self.prompt_n,
            "prompt_ms": self.prompt_ms,
            "prompt_per_token_ms": _ratio(self.prompt_ms, self.prompt_n),
            "prompt_per_second": _ratio(1e3 * self.prompt_n, self.prompt_ms),
            "predicted_n": self.predicted_n,
            "predicted_ms": self.predicted_ms,
            "predicted_per_token_ms": _ratio(self.predicted_ms, steps),
            "predicted_per_second": _ratio(1e3 * steps, self.predicted_ms),
            **({"paused_n": self.paused_n} if self.paused_n else {}),
            **self.extra,
        }


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0


def added(a: Any, b: Any) -> Any:
    """Statistics of two stretches of a text: numbers are summed, within lists by their place and
    within dicts by their name."""
    if isinstance(a, dict):
        return a | {name: added(a[name], x) if name in a else x for name, x in b.items()}
    if isinstance(a, list):
        return [x + y for x, y in zip_longest(a, b, fillvalue=0)]
    return a + b
