"""Attention over heads so wide that the shared memory of some cards decides how it is cut."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_rig import EMULATED, SHARED, Op, needs_cuda, slow
from riverrun.graph.case import BoundCase, Case, bind_case, f32, fixed, rand
from riverrun.ops.attention import Attention

ONLY_EMULATED = "sets how much shared memory a card has, which an emulated one alone lets"
pytestmark = [needs_cuda, pytest.mark.skipif(not EMULATED, reason=ONLY_EMULATED)]
# Bytes of a block on compute 9.0, and on 8.6, 8.9 and 12.0.
CARDS = (232448, 101376)


def attention(first: int, tokens: int, heads: int) -> BoundCase:
    """Tokens from position `first` on, each of which sees few keys."""
    case = Case(
        q=f32(tokens, heads, 576),
        k=rand("f16", 256, 1, 576),
        v=rand("f16", 256, 1, 512),
        seq_offsets=fixed(np.array([0, tokens]), "i32"),
        positions=fixed(np.arange(first, first + tokens, dtype=np.int32), "i32"),
        block_table=fixed(np.array([[0]]), "i32"),
        scale=1 / 24,
        heads="grouped",
        mask="causal",
        window=24,
    )
    return bind_case(Attention, case)


# 16 vectors a block fit everywhere; a block for all splits has 16 or 8; a block for each split has
# 16 where those for all have 8.
@pytest.mark.parametrize(
    ("first", "tokens", "heads"),
    [(124, 8, 2), pytest.param(30, 64, 32, marks=slow), (92, 40, 32)],
)
def test_cards_with_less_shared_memory_give_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, first: int, tokens: int, heads: int
) -> None:
    """Where tiles of 16 vectors do not fit, those of 8 do."""
    case, results = attention(first, tokens, heads), set()
    for most in CARDS:
        monkeypatch.setenv(SHARED, str(most))
        results.add(Op(case).run()["o"])
    assert len(results) == 1
    assert np.isfinite(np.frombuffer(results.pop(), np.float32)).all()
