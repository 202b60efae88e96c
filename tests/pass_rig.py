"""What tests of passes over prompts share: the processor with the manners of a card, and engines
that note these passes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import riverrun as rr
from riverrun.engine import Model, passes
from riverrun.engine.buckets import MAX_TOKENS
from riverrun.engine.portions import Portions
from riverrun.engine.sequences import Sequences
from riverrun.graph.errors import BackendError

N_CTX = 4096


@contextmanager
def card(monkeypatch: pytest.MonkeyPatch, model: Model, grid: int, **more: Any) -> Iterator[None]:
    """As if the model's backend were a card whose plans for prompts are exact at this grid, and on
    which short passes never pay."""
    able = replace(model.backend.capabilities, prompt_exact=False, joins_prompts=True, **more)
    with monkeypatch.context() as within:
        within.setattr(model.backend, "capabilities", able)
        within.setattr(passes, "prompt_grid", lambda model, plan: grid)
        within.setattr(Portions, "tokens", lambda self: MAX_TOKENS)
        yield


class Watched(Sequences):
    """Notes the passes over prompts: tokens of each item."""

    seen: list[list[int]]
    fails: int | None = None

    def evaluate(self, items: Any, *of: Any, **more: Any) -> Any:
        """A pass; those with the sequence `fails` in company fail."""
        if more.get("kind") == "prefill":
            self.seen.append([len(ids) for _, ids in items])
            if self.fails in [seq for seq, _ in items] and len(items) > 1:
                raise BackendError("no such pass")
        return super().evaluate(items, *of, **more)


def watched(model: Model, **more: Any) -> rr.Engine:
    Watched.seen = []
    return rr.Engine(model, sequences=Watched, n_ctx=N_CTX, **more)
