"""One generation whose tokens the device chooses: the same tokens as the host chooses, and the same
session afterwards, however it ends. The processor plays a device that runs late."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import riverrun as rr
from ahead_rig import (
    PROMPT,
    Queue,
    begin,
    boundary,
    broken_off,
    chooser,
    draws,
    late,
    left_behind,
    text,
)
from interrupts import lines
from one_op import cpu
from riverrun.engine.ahead import Ahead
from riverrun.engine.sampler import Sampler, SamplerParams
from riverrun.engine.sampler.chain import CHAIN, Candidates, ChainState, Row
from riverrun.graph.errors import BackendError, RequestError, SequenceLost
from riverrun.graph.random import uniform
from riverrun.models.step import CANDIDATES
from tiny_models import VARIANTS

GREEDY: Mapping[str, Any] = {"temperature": 0}
ASKED: Mapping[str, Mapping[str, Any]] = {
    "greedy": GREEDY,
    "default": {"seed": 3},
    "hot": {"seed": 2**64 - 5, "temperature": 1.7, "top_k": 64, "top_p": 1, "min_p": 0},
    "narrow": {"seed": 9, "temperature": 1.0, "top_k": 7, "top_p": 0.6, "min_p": 0.2},
    "one": {"seed": 1, "top_k": 1},
}
KEPT = [("llama", "auto"), ("gemma3", "auto"), ("qwen35", "replay"), ("qwen35", "snapshots")]
_files = TemporaryDirectory()


@cache
def plain(variant: str) -> rr.Model:
    path = Path(_files.name, f"{variant}.gguf")
    source = VARIANTS[variant]()
    source.vocab = "gpt2"
    return rr.load(source.write(path), device="cpu")


@cache
def ahead(variant: str) -> tuple[rr.Model, Queue]:
    return late(plain(variant))


def sessions(variant: str, rollback: str = "auto", n_ctx: int = 64) -> tuple[rr.Session, ...]:
    """Of the model that runs ahead and of the one that does not."""
    ahead(variant)[1].reset()
    how: dict[str, Any] = {"n_ctx": n_ctx, "rollback": rollback, "n_rs_seq": 1}
    return ahead(variant)[0].session(**how), plain(variant).session(**how)


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("variant, rollback", KEPT)
def test_same_tokens_and_same_session(variant: str, rollback: str, asked: dict) -> None:
    one, two = sessions(variant, rollback)
    got = text(one, True, 24, **asked)
    assert got == text(two, False, 24, **asked) and len(got[0]) == 24
    assert ahead(variant)[1].most == 2 and ahead(variant)[1].started == 23
    assert left_behind(one) == left_behind(two)


@pytest.mark.parametrize("n", [0, 1, 2, 3])
@pytest.mark.parametrize("variant, rollback", KEPT)
def test_short_limits(variant: str, rollback: str, n: int) -> None:
    one, two = sessions(variant, rollback)
    assert text(one, True, n, seed=1) == text(two, False, n, seed=1)
    assert left_behind(one) == left_behind(two)


@pytest.mark.parametrize("asked", [GREEDY, {"seed": 5}], ids=["greedy", "drawn"])
@pytest.mark.parametrize("variant, rollback", KEPT)
def test_the_context_ends(variant: str, rollback: str, asked: dict) -> None:
    one, two = sessions(variant, rollback, n_ctx=17)
    got = text(one, True, **asked)
    assert got == text(two, False, **asked) and (len(got[0]), got[1]) == (12, "length")
    # The newest token has no place.
    assert one.tokens() == two.tokens() == (PROMPT + got[0])[:17]
    with pytest.raises(RequestError, match="do not fit in a context of 17"):
        begin(one, True, prompt=[1], **asked)
    assert left_behind(one, 0) == left_behind(two, 0)


@pytest.mark.parametrize("variant", ["llama", "gemma3", "qwen35"])
def test_beyond_a_page_and_a_window(variant: str) -> None:
    one, two = sessions(variant, n_ctx=300)
    assert text(one, True, 270, seed=8) == text(two, False, 270, seed=8)
    assert left_behind(one) == left_behind(two)


@pytest.mark.parametrize(
    "asked", [GREEDY, {"seed": 5, "temperature": 1.5}], ids=["greedy", "drawn"]
)
@pytest.mark.parametrize("variant, rollback", KEPT)
def test_ends_within_the_text(
    variant: str, rollback: str, asked: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop texts and end tokens, at which a pass too many is under way."""
    whole = begin(sessions(variant, rollback)[1], False, 30, **asked).result
    ending = next(t for i, t in enumerate(whole.tokens) if i > 5 and t not in whole.tokens[:i])
    monkeypatch.setattr(plain(variant).tokenizer, "eog_ids", frozenset([ending]))
    for options in ({"stop": (whole.text[4:6],)}, {"ignore_eos": False}):
        one, two = sessions(variant, rollback)
        got = text(one, True, 30, **options, **asked)
        assert got == text(two, False, 30, **options, **asked)
        assert got[1] == "stop" and got[0] == whole.tokens[: len(got[0])]
        assert left_behind(one) == left_behind(two)


@pytest.mark.parametrize("taken", [1, 2, 5])
@pytest.mark.parametrize("variant, rollback", KEPT)
def test_closed_early_and_gone_on(variant: str, rollback: str, taken: int) -> None:
    """Also with the prompt that the session holds, and with one that shares its start."""
    one, two = sessions(variant, rollback)
    found = []
    for session, way in ((one, True), (two, False)):
        tokens = broken_off(session, way, taken, n=20, seed=6)
        held = session.tokens()
        assert held == PROMPT + tokens
        longer = text(session, way, 6, seed=6, prompt=[*held, 9], cache_prompt=True)
        other = text(session, way, 6, prompt=[*PROMPT, 1], cache_prompt=True, **GREEDY)
        found.append((tokens, held, longer, other, left_behind(session)))
    assert found[0] == found[1]


@pytest.mark.parametrize("variant, rollback", KEPT)
def test_an_exception_at_any_line_of_a_step(variant: str, rollback: str) -> None:
    """With a pass under way, the generation goes on to the same text, or says that it is lost."""
    one, two = sessions(variant, rollback)
    want = text(two, False, 12, seed=2)[0]
    generations: list[Any] = []
    lost = whole = 0

    def prepare() -> Callable[[], object]:
        one.clear()
        generations.append(begin(one, True, 12, seed=2))
        while len(generations[-1].tokens) < 4:
            generations[-1].engine.step()
        return generations[-1].engine.step  # type: ignore[no-any-return]

    for _ in lines(prepare, step=5):
        request = generations[-1].request
        try:
            assert generations[-1].result.tokens == want
            whole += 1
        except SequenceLost:
            assert request.tokens == want[: len(request.tokens)]
            lost += 1
        assert not ahead(variant)[1].waiting
    assert lost and whole
    generations[-1].close()
    one.clear()
    two.clear()
    assert text(one, True, 12, seed=2) == text(two, False, 12, seed=2)
    assert left_behind(one) == left_behind(two)


@pytest.mark.parametrize("asked", [GREEDY, {"seed": 5}], ids=["greedy", "drawn"])
@pytest.mark.parametrize("way", ["fail", "refuse"])
@pytest.mark.parametrize("number", [0, 1, 4])
@pytest.mark.parametrize("variant, rollback", KEPT)
def test_a_failing_pass(variant: str, rollback: str, number: int, way: str, asked: dict) -> None:
    """What was chosen before it stays; the session goes on from there."""
    one, two = sessions(variant, rollback)
    getattr(ahead(variant)[1], way).add(number)
    generation = begin(one, True, 20, **asked)
    with pytest.raises(BackendError, match=f"run {number} failed|the device is gone"):
        list(generation)
    want = text(two, False, 20, **asked)[0]
    # The pass before one that cannot be started is not waited for.
    chosen = number + 1 if way == "fail" else max(1, number)
    assert generation.tokens == want[:chosen]
    assert generation.result.finish_reason == "error"
    assert one.tokens() == PROMPT + generation.tokens
    two.clear()
    two.evaluate([(0, one.tokens())], want="none")
    assert left_behind(one)[:4] == left_behind(two)[:4]


@pytest.mark.parametrize("variant, rollback", KEPT)
def test_a_failing_pass_that_nobody_wants(variant: str, rollback: str) -> None:
    one, two = sessions(variant, rollback)
    queue = ahead(variant)[1]
    generations = begin(one, True, 20, seed=1), begin(two, False, 20, seed=1)
    for generation in generations:
        while len(generation.tokens) < 4:
            generation.engine.step()
    queue.fail.add(queue.started - 1)
    assert len(queue.waiting) == 1
    for generation in generations:
        generation.close()
    assert not queue.waiting
    assert generations[0].tokens == generations[1].tokens
    assert left_behind(one)[:4] == left_behind(two)[:4]


@pytest.mark.parametrize("variant, rollback", KEPT)
def test_logits_that_are_not_finite(variant: str, rollback: str) -> None:
    """The token that they are of stays, as after a step."""
    one, two = sessions(variant, rollback)
    ahead(variant)[1].spoil[2] = [0]
    generation = begin(one, True, 20, seed=1)
    with pytest.raises(BackendError, match="the logits' largest value is nan"):
        list(generation)
    assert generation.tokens == text(two, False, 3, seed=1)[0]
    assert left_behind(one) == left_behind(two)


def test_a_generation_is_refused_as_a_step_is() -> None:
    one, _ = sessions("qwen35")
    with pytest.raises(RequestError, match="token ids are from 0 to"):
        begin(one, True, prompt=[10**6])
    one.verify([(0, [1, 2])])
    with pytest.raises(RequestError, match="2 tokens are pending"):
        text(one, True, 3, prompt=[1])
    one.commit(0, 2)
    assert one.length() == 2


@pytest.mark.parametrize(
    "asked",
    [
        {"top_k": 0},
        {"top_k": 65},
        {"top_k": 1000},
        {"top_k": 288},
        {"repeat_penalty": 1.2},
        {"logit_bias": {5: 1.0}},
        {"temperature": 0, "presence_penalty": 0.5},
    ],
    ids=str,
)
def test_what_takes_the_host_is_decoded_pass_by_pass(asked: dict) -> None:
    one, two = sessions("llama")
    assert chooser(one.model, **asked).device_draw is None
    assert text(one, True, 12, seed=1, **asked) == text(two, False, 12, seed=1, **asked)
    assert ahead("llama")[1].started == 0
    assert left_behind(one) == left_behind(two)


def test_requests_that_differ_share_a_session() -> None:
    one, two = sessions("qwen35", n_ctx=200)
    compiled = len(one.model.plans._plans)
    for asked in [*ASKED.values(), *ASKED.values()]:
        assert text(one, True, 8, **asked) == text(two, False, 8, **asked)
    assert left_behind(one) == left_behind(two)
    programs = {(s.candidates, p) for s, _, _, p in one.model.plans._plans if p == "ahead"}
    assert programs == {(1, "ahead"), (CANDIDATES, "ahead")}
    assert len(one.model.plans._plans) <= compiled + 2 + 2


@pytest.mark.parametrize("how", [{"n_rs_seq": 0}, {"rollback": "checkpoint:host"}], ids=str)
def test_memory_that_does_not_go_back_has_no_pass_under_way(how: dict) -> None:
    sessions("qwen35")
    model, queue = ahead("qwen35")
    session = model.session(64, **how)
    assert text(session, True, 12, seed=1) == text(sessions("qwen35")[1], False, 12, seed=1)
    assert queue.started == 0


def test_who_runs_ahead() -> None:
    model = ahead("qwen35")[0]
    assert Ahead(model.session(32).sequences).overlaps
    for how in ({"n_rs_seq": 0}, {"rollback": "checkpoint:host", "n_rs_seq": 1}):
        assert not Ahead(model.session(32, **how).sequences).overlaps
    assert not Ahead(plain("qwen35").session(32, n_rs_seq=1).sequences).overlaps


@pytest.mark.parametrize("k", [2, 40, 300])
def test_the_op_draws_what_the_sampler_draws(k: int) -> None:
    draws(cpu(2), k, 40)


def test_the_op_draws_with_the_number_of_the_sampler() -> None:
    boundary(cpu(1))


def test_what_a_sampler_asks_of_a_device() -> None:
    sampler = Sampler(SamplerParams(seed=7, top_k=20, top_p=1, min_p=0, temperature=0.3), 288)
    draw = sampler.device_draw
    assert draw is not None
    assert (draw.top_k, draw.temperature, draw.seed) == (20, 0.3, 7)
    assert (draw.candidates, draw.top_p, draw.min_p) == (CANDIDATES, 1, 0)
    assert 0 <= uniform(draw.seed, 1) < 1
    one = Sampler(SamplerParams(top_k=1), 288).device_draw
    assert one is not None and (one.candidates, one.top_k) == (1, 1)


def only_even(c: Candidates, _: ChainState) -> Candidates:
    """A step that someone adds: tokens with an even id, or all where there are none."""
    keep = np.flatnonzero(c.ids % 2 == 0)
    return c.take(keep, c.ordered) if keep.size else c


@pytest.mark.parametrize("at", [0, 1, 2, 4], ids=["first", "within", "top_k", "last"])
def test_a_step_added_to_the_chain_takes_the_host(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it stands, as long as it is active; `on_device` is for it to say."""

    def added(**how: Any) -> None:
        row = Row("only_even", lambda p: p.min_p == 0.125, only_even, **how)
        chain = list(CHAIN)
        chain.insert(at, row)
        monkeypatch.setattr("riverrun.engine.sampler.sampler.CHAIN", tuple(chain))

    added()
    one, two = sessions("llama")
    asked = {"seed": 1, "temperature": 1.5, "min_p": 0.125}
    assert chooser(one.model, **asked).device_draw is None
    got = text(one, True, 12, **asked)
    assert got == text(two, False, 12, **asked) and not any(t % 2 for t in got[0])
    assert ahead("llama")[1].started == 0
    for other in ({"min_p": 0.05}, {"temperature": 0, "min_p": 0.125}):
        assert chooser(one.model, **(asked | other)).device_draw is not None
    sampler = chooser(one.model, **asked).sampler
    assert sampler.clone().device_draw is None
    added(shapes_greedy=True)
    assert chooser(one.model, **(asked | {"temperature": 0})).device_draw is None
    added(on_device=True)
    assert chooser(one.model, **asked).device_draw is not None
