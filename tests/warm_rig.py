"""What tests of warming up share: plans that are bound while requests begin at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import riverrun as rr
from engine_rig import finish
from riverrun.engine.request import Request
from riverrun.engine.runner import Runner

# How the tokens of all requests of a wave are chosen: by the device, or by the host.
CHOICES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "seed": 3},
    "penalties": {"temperature": 0.8, "seed": 3, "repeat_penalty": 1.2},
    "logprobs": {"temperature": 0.0, "logprobs": 1},
    "cached": {"temperature": 0.0, "cache_prompt": True},
}


def binds(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is bound from now on, by the sessions of drafters, too."""
    found, bind = [], Runner.bind

    def noting(self: Runner, *key: Any) -> Any:
        found.append(key)
        return bind(self, *key)

    monkeypatch.setattr(Runner, "bind", noting)
    return found


def wave(engine: rr.Engine, n: int, lengths: Sequence[int], **more: Any) -> list[Request]:
    """The requests of n prompts of these lengths in turn that begin at once, when all have ended;
    they are long enough that all decode together."""
    requests = [
        engine.submit([7 + i] * lengths[i % len(lengths)], 3 + n, ignore_eos=True, **more)
        for i in range(n)
    ]
    finish(engine)
    assert all(request.error is None for request in requests)
    return requests
