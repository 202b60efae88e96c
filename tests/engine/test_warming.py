"""After warming up, what requests run is compiled, and they get what they get without."""

from __future__ import annotations

from typing import Any

import pytest
from demo import demo
from riverrun.engine.engine import Engine
from riverrun.engine.warming import warm_up
from spec_rig import speculation
from warm_rig import CHOICES, binds, wave

N_SEQS = 5


@pytest.mark.parametrize(
    ("kinds", "adaptive"),
    [((), True), (("mtp",), True), (("mtp",), False), (("draft",), False)],
)
def test_nothing_is_compiled_later(
    monkeypatch: pytest.MonkeyPatch, kinds: tuple[str, ...], adaptive: bool
) -> None:
    model, spec = demo(), speculation(kinds, adaptive=adaptive) if kinds else None
    with Engine(model, n_seqs=N_SEQS, n_ctx=256, spec=spec) as engine:
        warm_up(engine)
        assert engine.idle
        assert all(engine.sequences.length(seq) == 0 for seq in range(N_SEQS))
        found = binds(monkeypatch)
        for choice in CHOICES.values():
            for n in (1, 3, N_SEQS):
                wave(engine, n, (1, 5, 100, 60, 2), **choice)
            wave(engine, N_SEQS + 1, (32,), **choice)
        assert found == []
        lengths = (1, 5, 100, 60, 2)
        requests = wave(engine, 5, lengths, temperature=0)
    for i, (request, length) in enumerate(zip(requests, lengths, strict=True)):
        alone = model.generate([7 + i] * length, 8, temperature=0, ignore_eos=True, n_ctx=256)
        assert request.text == "".join(alone)


def test_plans_share_scratch_memory() -> None:
    with Engine(demo(), n_seqs=N_SEQS, n_ctx=1024) as engine:
        warm_up(engine)
        plans: list[Any] = engine.sequences.runner.bound_plans
        sizes = {id(bound.scratch): bound.scratch.nbytes for bound in plans}
    assert sum(sizes.values()) <= 1.25 * max(sizes.values())
