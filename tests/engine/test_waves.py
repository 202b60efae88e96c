"""Many requests that begin at once: what is looked at for them, and the passes that they take."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
import riverrun as rr
from engine_rig import GREEDY, finish
from parked_rig import ask, require_cold
from pass_rig import Watched, card, watched
from riverrun.engine import parked, sequences
from riverrun.engine.items import BLOCK, FIRST, common_length
from rollback_rig import stream, tiny

N_SEQS = 8


def naive(a: Sequence[int], b: Sequence[int], most: int) -> int:
    n = 0
    while n < min(len(a), len(b), most) and a[n] == b[n]:
        n += 1
    return n


@pytest.mark.parametrize("length", [0, 1, FIRST, 5 * FIRST, 6 * FIRST + 1, 3 * BLOCK + 7])
def test_common_tokens_are_those_that_a_loop_finds(length: int) -> None:
    text = np.random.default_rng(length).integers(0, 9, length + 9).tolist()
    other = [*text[:length], *([10] * 9)]
    assert common_length(text, other) == common_length(other, text) == length
    assert common_length(tuple(text), other) == length
    ends = [0, 1, 2, FIRST - 1, length // 2, length - 1, length, length + 9, length + 99]
    for most, short in product((end for end in ends if end >= 0), (0, 1, length, length + 9)):
        want = naive(text[:short], text, most)
        assert common_length(text[:short], text, most) == want
        assert common_length(other, text, most) == naive(other, text, most)


def test_texts_that_begin_otherwise_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0

    def counting(*of: Any) -> int:
        nonlocal compared
        compared += 1
        return common_length(*of)

    for module in (parked, sequences):
        monkeypatch.setattr(module, "common_length", counting)
    with rr.Engine(tiny(), n_seqs=N_SEQS, n_ctx=256) as engine:
        for first in (0, N_SEQS):
            compared = 0
            asked = [ask(engine, [first + i, *stream(800 + i, 20)]) for i in range(N_SEQS)]
            finish(engine)
            # Each with what its own sequence holds.
            assert compared == N_SEQS
            for request in asked:
                require_cold(request, "qwen35")


@pytest.mark.parametrize(("busy", "most"), [(False, 1), (True, 4)])
def test_sixty_four_short_prompts_share_passes(
    monkeypatch: pytest.MonkeyPatch, busy: bool, most: int
) -> None:
    """One that decodes waits for no more than 512 tokens of them at a time."""
    model = tiny("llama")
    with card(monkeypatch, model, 64, prompt_chunk=2048), watched(model, n_seqs=65) as engine:
        if busy:
            other = engine.submit(stream(820, 5), 40, **GREEDY)
            while not other.tokens:
                engine.step()
        Watched.seen.clear()
        asked = [engine.submit(stream(821 + i, 32), 1, **GREEDY) for i in range(64)]
        finish(engine)
        assert all(request.tokens for request in asked)
        assert len(Watched.seen) == most and sum(map(sum, Watched.seen)) == 64 * 32


def test_drafters_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each request: that is a folder's worth of files, and checks of a protocol."""
    spec = rr.Speculation(("ngram-simple",))
    with rr.Engine(tiny(), n_seqs=2, n_ctx=128, draft_max=4, spec=spec) as engine:
        ask(engine, stream(1, 9))
        finish(engine)
        monkeypatch.setattr("pkgutil.iter_modules", None)
        monkeypatch.setattr("riverrun.speculative.options.Speculation.open", None)
        again = [ask(engine, stream(i, 9)) for i in range(3)]
        finish(engine)
    assert all(request.drafting is again[0].drafting for request in again)
    assert all(request.error is None for request in again)


def test_rows_of_sequences_that_begin_at_once_become_zero_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One write for each state, before the first pass: on a card each is a call of its own."""
    model, written = tiny(), list[Any]()
    with rr.Engine(model, n_seqs=N_SEQS, n_ctx=128) as engine:
        pools, states = engine.sequences.pools, model.plan_session(128, N_SEQS).states
        recurrent = [name for name in states if "_state." in name]
        first = [engine.submit(stream(840 + i, 9), 3, **GREEDY) for i in range(N_SEQS)]
        finish(engine)
        write = pools.write

        def noting(name: str, at: Any, values: Any) -> None:
            written.append(name)
            write(name, at, values)

        monkeypatch.setattr(pools, "write", noting)
        again = [engine.submit(stream(840 + i, 9), 3, **GREEDY) for i in range(N_SEQS)]
        finish(engine)
    assert recurrent and sorted(n for n in written if n in recurrent) == sorted(recurrent)
    assert [r.tokens for r in again] == [r.tokens for r in first]
