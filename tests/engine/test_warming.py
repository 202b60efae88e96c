"""After warming up, what requests run is compiled, and they get what they get without."""

from __future__ import annotations

import pytest
from demo import demo
from riverrun.engine.engine import Engine
from riverrun.engine.warming import warm_up


@pytest.mark.parametrize("spec", [None, "mtp"])
def test_nothing_is_compiled_later(spec: str | None) -> None:
    model = demo()
    with Engine(model, n_seqs=3, n_ctx=256, spec=spec) as engine:
        warm_up(engine)
        assert engine.idle
        assert all(engine.sequences.length(seq) == 0 for seq in range(3))
        before = len(engine.sequences.runner.bound_plans)
        requests = [
            engine.submit([7 + i] * length, 6, temperature=0, ignore_eos=True)
            for i, length in enumerate((1, 5, 100, 60, 2))
        ]
        while not engine.idle:
            engine.step()
        assert len(engine.sequences.runner.bound_plans) == before
    for i, (request, length) in enumerate(zip(requests, (1, 5, 100, 60, 2), strict=True)):
        alone = model.generate([7 + i] * length, 6, temperature=0, ignore_eos=True, n_ctx=256)
        assert request.text == "".join(alone)
