"""Decoding ahead of the host on a card: tokens and sessions as where the host chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import riverrun as rr
from ahead_rig import PROMPT, Free, begin, boundary, broken_off, draws, left_behind, text
from cuda_rig import backend, needs_cuda, slow, thinned
from picks import Sequences, check
from riverrun.engine.ahead import Ahead, PickingPlan
from riverrun.engine.bound_step import Part
from riverrun.engine.request import Request
from riverrun.graph.errors import BackendError
from rollback_rig import tiny

pytestmark = needs_cuda
ASKED: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0},
    "default": {"seed": 3},
    "hot": {"seed": 2**64 - 5, "temperature": 1.7, "top_k": 64, "top_p": 1, "min_p": 0},
}
KEPT = [
    ("qwen35", "replay"),
    pytest.param("qwen35", "snapshots", marks=slow),
    ("gemma3", "auto"),
    pytest.param("llama", "auto", marks=slow),
]


def sessions(variant: str, rollback: str = "auto", n_ctx: int = 64) -> list[Any]:
    model = tiny(variant, "cuda")
    return [model.session(n_ctx, rollback=rollback, n_rs_seq=1) for _ in range(2)]


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("variant, rollback", KEPT)
def test_same_tokens_and_same_session(
    variant: str, rollback: str, asked: Mapping[str, Any]
) -> None:
    one, two = sessions(variant, rollback)
    n = thinned(40, 8)
    got = text(one, True, n, **asked)
    assert got == text(two, False, n, **asked) and len(got[0]) == n
    assert left_behind(one, 1) == left_behind(two, 1)


@pytest.mark.parametrize("variant", ["qwen35", "gemma3"])
def test_the_context_ends(variant: str) -> None:
    one, two = sessions(variant, n_ctx=12)
    got = text(one, True, seed=2)
    assert got == text(two, False, seed=2) and (len(got[0]), got[1]) == (7, "length")
    # The newest token has no place.
    assert one.tokens() == two.tokens() == (PROMPT + got[0])[:12]
    assert left_behind(one, 0) == left_behind(two, 0)


@pytest.mark.parametrize("variant, rollback", KEPT)
def test_closed_early_and_gone_on(variant: str, rollback: str) -> None:
    found = []
    for session, way in zip(sessions(variant, rollback), (True, False), strict=True):
        session.prefill(PROMPT)
        tokens = broken_off(session, way, 3, prompt=[7], seed=6)
        prompt = [*PROMPT, 7, *tokens, 9]
        assert session.tokens() == prompt[:-1]
        longer = text(session, way, 3, seed=6, prompt=prompt, cache_prompt=True)
        found.append((tokens, longer, left_behind(session, 1)))
    assert found[0] == found[1]


def spoil(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let the pass of this number, counted from 0 and from now on, fail."""
    fill, filled = PickingPlan.fill, 0

    def spoiled(self: PickingPlan, requests: Sequence[Request], parts: Sequence[Part]) -> None:
        nonlocal filled
        fill(self, requests, parts)
        if filled == number:
            self.bound.inputs["kv_rows"][: len(parts)] = 10**6
        filled += 1

    monkeypatch.setattr(PickingPlan, "fill", spoiled)


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("variant", ["qwen35", "gemma3"])
def test_a_failing_pass(variant: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was chosen before it stays; the session goes on from there."""
    one, two = sessions(variant)
    spoil(monkeypatch, number)
    generation = begin(one, True, 20, seed=4)
    with pytest.raises(BackendError, match="1000000"):
        list(generation)
    # A pass may tell of a fault in the one that started after it.
    assert max(1, number) <= len(generation.tokens) <= number + 1
    assert one.tokens() == PROMPT + generation.tokens
    two.prefill(PROMPT)
    for token in generation.tokens:
        two.decode(token)
    got, want = (np.stack([s.decode(t).copy() for t in (3, 4)]) for s in (one, two))
    monkeypatch.undo()
    if variant == "qwen35":
        # What is left of a recurrent state is unknown: it is evaluated again, in a pass whose
        # kernels round otherwise than those of prompts.
        assert np.linalg.norm(got - want) < 0.15 * np.linalg.norm(want)
        assert len(text(one, True, 4, seed=4, prompt=[8])[0]) == 4
    else:
        np.testing.assert_array_equal(got, want)
        assert text(one, True, 4, seed=4, prompt=[8]) == text(two, False, 4, seed=4, prompt=[8])


MANY: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"prompt": PROMPT, "max_tokens": 7, "temperature": 0},
    "default": {"prompt": [7, 30], "max_tokens": 4, "seed": 3},
    "hot": {"prompt": [200], "max_tokens": 9, **ASKED["hot"]},
}


def require_alone(model: rr.Model, requests: Sequence[Request]) -> None:
    """Each has the text that the host chooses for it alone."""
    for asked, request in zip(MANY.values(), requests, strict=True):
        want = model.generate(n_ctx=64, ignore_eos=True, constraint=Free(), **asked).result
        assert request.error is None and request.on_device
        assert request.tokens == want.tokens


@pytest.mark.parametrize("variant, rollback", KEPT)
def test_several_requests(variant: str, rollback: str) -> None:
    """One joins, and they end one by one."""
    model = tiny(variant, "cuda")
    with rr.Engine(model, n_seqs=3, n_ctx=64, rollback=rollback, n_rs_seq=1) as e:
        asked = iter(MANY.values())
        requests = [e.submit(ignore_eos=True, **next(asked)) for _ in range(2)]
        while not all(request.tokens for request in requests):
            e.step()
        requests.append(e.submit(ignore_eos=True, **next(asked)))
        while not e.idle:
            e.step()
        require_alone(model, requests)


@pytest.mark.parametrize("number", [0, 1])
def test_a_pass_of_several_that_fails_once(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them go on."""
    model = tiny("gemma3", "cuda")
    with rr.Engine(model, n_seqs=3, n_ctx=64) as e:
        requests = [e.submit(ignore_eos=True, **asked) for asked in MANY.values()]
        while not all(request.tokens for request in requests):
            e.step()
        with monkeypatch.context() as patch:
            spoil(patch, number)
            while not e.idle:
                e.step()
        require_alone(model, requests)


def test_a_model_on_a_card_runs_ahead() -> None:
    assert Ahead(tiny("qwen35", "cuda").session(32).sequences).overlaps


@pytest.mark.parametrize("variant", ["qwen35", pytest.param("gemma3", marks=slow)])
def test_several_sequences_pick_their_tokens(variant: str) -> None:
    """As samplers choose from the logits of their steps, one by one."""
    sequences = Sequences(tiny(variant, "cuda"), 280)
    for seq, prompt in enumerate((PROMPT, [7], [200, 4])):
        sequences.prompt(seq, prompt)
    check(sequences)


@pytest.mark.parametrize("k", [2, 40, 64, pytest.param(300, marks=slow)])
def test_the_op_draws_what_the_sampler_draws(k: int) -> None:
    draws(backend(), k, thinned(40, 4))


def test_the_op_draws_with_the_number_of_the_sampler() -> None:
    boundary(backend())
