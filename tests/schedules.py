"""Schedules of an engine: requests that come and go at random, and the results of the same ones
running alone."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import riverrun as rr
from engine_rig import finish, solo
from riverrun.engine.request import Request

Specs = Mapping[str, Mapping[str, Any]]
Asked = list[tuple[str, Request]]


def choose(rng: random.Random, specs: Specs, drafts: Sequence[Mapping[str, Any]]) -> Any:
    """A request's name and arguments, with drafts or without."""
    name = rng.choice(list(specs))
    more: Mapping[str, Any] = {"speculative": None}
    if rng.random() < 0.5:
        more = rng.choice(drafts)
    return name, {**specs[name], **more}


def run(e: rr.Engine, seed: int, specs: Specs, drafts: Sequence[Mapping[str, Any]]) -> Asked:
    """Eight requests that join at random steps; some are cancelled at random ones."""
    rng = random.Random(seed)
    waiting = [choose(rng, specs, drafts) for _ in range(8)]
    leaving: dict[int, Request] = {}
    asked: Asked = []
    step = 0
    while waiting or not e.idle:
        while waiting and (e.idle or rng.random() < 0.3):
            name, spec = waiting.pop()
            request = e.submit(**spec)
            asked.append((name, request))
            if rng.random() < 0.25:
                leaving[step + rng.randrange(30)] = request
        if step in leaving:
            leaving[step].cancel()
        e.step()
        step += 1
    finish(e)
    return asked


def require_solo(asked: Asked, specs: Specs, model: rr.Model) -> None:
    """Bit for bit what each gives alone and without drafts; cancelled ones have its start."""
    for name, request in asked:
        want, got = solo(model, specs[name]), request.result
        assert got is not None
        if request.cancelled and got.finish_reason == "cancelled":
            assert got.tokens == want.tokens[: len(got.tokens)], name
            continue
        assert got.error == "", name
        assert (got.tokens, got.text) == (want.tokens, want.text), name
        assert got.finish_reason == want.finish_reason, name
