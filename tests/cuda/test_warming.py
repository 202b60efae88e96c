"""After warming up, what requests run on a card is recorded, however many begin at once."""

from __future__ import annotations

import pytest
import riverrun as rr
from cuda_rig import needs_cuda
from riverrun.engine.warming import warm_up
from rollback_rig import tiny
from warm_rig import CHOICES, binds, wave

pytestmark = needs_cuda
N_SEQS = 3


@pytest.mark.parametrize("spec", [None, "mtp"])
def test_nothing_is_recorded_later(monkeypatch: pytest.MonkeyPatch, spec: str | None) -> None:
    model = tiny("qwen35,mtp", "cuda")
    with rr.Engine(model, n_seqs=N_SEQS, n_ctx=160, spec=spec) as engine:
        assert engine.sequences.storage.joins_prompts
        warm_up(engine)
        found = binds(monkeypatch)
        for choice in CHOICES.values():
            wave(engine, N_SEQS - 1, (1, 120), **choice)
            wave(engine, N_SEQS + 1, (32,), **choice)
        assert found == []
