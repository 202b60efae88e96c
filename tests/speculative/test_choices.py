"""In rounds of drafts a device chooses wherever it does without drafts: the host gets ids, and
logits only of requests that it chooses for itself. The tokens are those of plain decoding."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import riverrun as rr
from ahead_rig import Free
from demo import demo
from engine_rig import finish
from refusing import Without
from riverrun.backends import Plan
from riverrun.bench.spec import synthetic
from riverrun.bench.spec_synthetic import Coins
from riverrun.engine.chooser import Chooser
from riverrun.engine.draws import Draws, sound
from riverrun.engine.plan_cache import PlanCache
from riverrun.engine.sampler import DeviceDraw, Sampler, SamplerParams
from riverrun.graph import Graph
from riverrun.graph.errors import BackendError, Unsupported
from riverrun.models.step import CANDIDATES
from riverrun.speculative.acceptance import match
from riverrun.speculative.drafter import Draft
from rollback_rig import STRATEGIES
from spec_rig import GREEDY, TEXTS, bound_type, plain, require_equal, speculation, speculator

N = 40
PROMPT = TEXTS["p17"]
# What a device draws, and what it does not.
DRAWN: dict[str, dict[str, Any]] = {
    "greedy": GREEDY,
    "default": {"seed": 3},
    "narrow": {"seed": 2**63 + 9, "temperature": 1.2, "top_k": 7, "top_p": 0.8, "min_p": 0.1},
}
SEEN: dict[str, dict[str, Any]] = {
    "all open": {"seed": 5, "temperature": 0.7, "top_k": 0},
    "penalties": {**GREEDY, "repeat_penalty": 1.3},
    "bias": {"seed": 7, "logit_bias": {258: 2.0, 279: -1.0}},
    "constraint": {**GREEDY, "constraint": Free()},
    "logprobs": {**GREEDY, "logprobs": 2},
}


class Fetched:
    """What passes have brought to the host: for each, the rows of its outputs by name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, model: rr.Model) -> None:
        self.passes: list[dict[str, int]] = []
        self.counts = False
        bound = type(model.session(64).sequences.runner.bound_plans[0])
        run = bound.run

        def counted(this: Any, rows: int | None = None) -> None:
            run(this, rows)
            if self.counts:
                self.passes.append({name: len(array) for name, array in this.outputs.items()})

        monkeypatch.setattr(bound, "run", counted)

    @property
    def logits(self) -> list[int]:
        """Rows of logits of each pass that brought some."""
        return [found["logits"] for found in self.passes if "logits" in found]


def decoded(engine: rr.Engine, requests: list[rr.Request], fetched: Fetched) -> None:
    """Step until all requests have a first token, from where on passes count; then to the end."""
    while any(not request.tokens for request in requests):
        engine.step()
    fetched.counts = True
    finish(engine)
    fetched.counts = False


@pytest.mark.parametrize("kind", ["mtp", "draft", "ngram-cache"])
@pytest.mark.parametrize("how", DRAWN)
def test_no_logits_where_the_device_draws(
    monkeypatch: pytest.MonkeyPatch, how: str, kind: str
) -> None:
    model, asked = demo(), speculation((kind,), 3)
    with rr.Engine(model, n_seqs=1, n_ctx=256, spec=asked) as engine:
        fetched = Fetched(monkeypatch, model)
        request = engine.submit(PROMPT, N, ignore_eos=True, **DRAWN[how])
        decoded(engine, [request], fetched)
    require_equal(request.result, plain(model, PROMPT, N, **DRAWN[how]))
    assert request.result.timings["draft_n"] > 0
    assert fetched.passes and fetched.logits == []


@pytest.mark.parametrize("how", SEEN)
def test_logits_where_the_host_chooses(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    model, asked = demo(), speculation(("mtp",), 3)
    with rr.Engine(model, n_seqs=1, n_ctx=256, spec=asked) as engine:
        fetched = Fetched(monkeypatch, model)
        request = engine.submit(PROMPT, N, ignore_eos=True, **SEEN[how])
        decoded(engine, [request], fetched)
    without = {k: v for k, v in SEEN[how].items() if k not in ("constraint", "logprobs")}
    assert request.tokens == plain(model, PROMPT, N, **without).tokens
    if how == "logprobs":
        assert request.result.logprobs == plain(model, PROMPT, N, **SEEN[how]).logprobs
    # The drafts of the block itself are chosen on the device all the same.
    assert len(fetched.logits) == request.result.timings["draft_rounds"]


@pytest.mark.parametrize("rollback", STRATEGIES)
def test_requests_of_both_kinds_share_passes(
    monkeypatch: pytest.MonkeyPatch, rollback: str
) -> None:
    """Of the pass those rows come whose tokens the host chooses, where they are not nearly all."""
    model, asked = demo(), speculation(("mtp",), 3)
    ways = {**DRAWN, "constraint": SEEN["constraint"], "hot": DRAWN["narrow"] | {"seed": 4}}
    prompts = list(TEXTS.values())
    with rr.Engine(model, n_seqs=5, n_ctx=512, spec=asked, rollback=rollback) as engine:
        fetched = Fetched(monkeypatch, model)
        requests = [
            engine.submit(prompt, N, ignore_eos=True, **how)
            for prompt, how in zip(prompts, ways.values(), strict=True)
        ]
        decoded(engine, requests, fetched)
    for request, prompt, how in zip(requests, prompts, ways.values(), strict=True):
        without = {k: v for k, v in how.items() if k != "constraint"}
        assert request.tokens == plain(model, prompt, N, **without).tokens
    both = [found for found in fetched.passes if {"token", "logits"} <= found.keys()]
    assert len(both) >= 8
    assert all(found["logits"] <= found["token"] / 2 for found in both if found["token"] > 16)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_rejection_sees_logits_where_drafts_are_drawn(
    monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    model, asked = demo(), speculation(("mtp",), 3, acceptance="rejection")
    with rr.Engine(model, n_seqs=1, n_ctx=256, spec=asked) as engine:
        fetched = Fetched(monkeypatch, model)
        options = {"temperature": temperature, "seed": 5, "ignore_eos": True}
        request = engine.submit(PROMPT, N, **options)
        decoded(engine, [request], fetched)
    rounds = request.result.timings["draft_rounds"]
    assert len(fetched.logits) == (rounds if temperature else 0)


def seeing(rule: Any) -> Any:
    """The same rule as one of which nothing is known."""

    def judge(chooser: Chooser, logits: np.ndarray, draft: Draft, at: int) -> Iterator[int]:
        yield from rule(chooser, logits, draft, at)

    return judge


def test_rules_of_ones_own_see_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked = demo(), speculation(("mtp",), 3, rule=seeing(match))
    with rr.Engine(model, n_seqs=1, n_ctx=256, spec=asked) as engine:
        fetched = Fetched(monkeypatch, model)
        request = engine.submit(PROMPT, N, ignore_eos=True, **GREEDY)
        decoded(engine, [request], fetched)
    require_equal(request.result, plain(model, PROMPT, N, **GREEDY))
    assert len(fetched.logits) == request.result.timings["draft_rounds"]


def test_coins_are_tossed_over_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they leave is what they leave over logits."""
    model = demo()
    coins = synthetic(model, speculation(("mtp",), 3), (0.7, 0.4))
    assert isinstance(coins.rule, Coins)
    found = []
    for asked in (coins, replace(coins, rule=seeing(coins.rule))):
        with rr.Engine(model, n_seqs=2, n_ctx=256, spec=asked) as engine:
            fetched = Fetched(monkeypatch, model)
            requests = [
                engine.submit(TEXTS[name], N, ignore_eos=True, seed=seed, **GREEDY)
                for seed, name in enumerate(("p17", "p64"))
            ]
            decoded(engine, requests, fetched)
            found.append([request.tokens for request in requests])
            assert bool(fetched.logits) == (asked is not coins)
        monkeypatch.undo()
    assert found[0] == found[1]
    assert found[0][0] != plain(model, PROMPT, N, **GREEDY).tokens


@pytest.mark.parametrize("kind", ["mtp", "draft"])
def test_shares_of_ten_need_no_logits(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    model, drafted = demo(), []
    for p_min in (0.0, 0.5):
        asked = speculation((kind,), 4, p_min=p_min)
        with rr.Engine(model, n_seqs=1, n_ctx=256, spec=asked) as engine:
            fetched = Fetched(monkeypatch, model)
            request = engine.submit(PROMPT, N, ignore_eos=True, **GREEDY)
            decoded(engine, [request], fetched)
        monkeypatch.undo()
        drafted.append(request.result.timings["draft_n"])
        require_equal(request.result, plain(model, PROMPT, N, **GREEDY))
        assert fetched.logits == []
    assert drafted[1] < drafted[0]


class Plain(Without):
    """A backend that lacks some ops."""

    def compile(self, graph: Graph, kind: str = "step") -> Plan:
        if {node.op.name for node in graph.nodes} & set(self.ops):
            raise Unsupported(f"does without {self.ops}")
        return super().compile(graph, kind)


@pytest.mark.parametrize("refused", ["top_k", "sample"])
@pytest.mark.parametrize("kind", ["mtp", "draft"])
def test_devices_that_cannot_choose(kind: str, refused: str) -> None:
    """The host chooses for them."""
    model = copy.copy(demo())
    model.backend, model.plans = Plain(model.backend, refused), PlanCache()
    for how in (GREEDY, DRAWN["default"]):
        asked = speculation((kind,), 3)
        if asked.draft_model is not None:
            draft = copy.copy(asked.draft_model)
            draft.backend, draft.plans = Plain(draft.backend, refused), PlanCache()
            asked = replace(asked, draft_model=draft)
        with rr.Engine(model, n_seqs=1, n_ctx=256, spec=asked) as engine:
            request = engine.submit(PROMPT, N, ignore_eos=True, **how)
            finish(engine)
        require_equal(request.result, plain(demo(), PROMPT, N, **how))
        assert request.result.timings["draft_n"] > 0


def test_a_row_that_is_damaged_ends_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows behind the first draft that was not chosen are nobody's."""
    model, asked = demo(), speculation(("mtp",), 3)
    with rr.Engine(model, n_seqs=2, n_ctx=256, spec=asked) as engine:
        requests = [engine.submit(TEXTS[n], N, ignore_eos=True, **GREEDY) for n in ("p17", "p64")]
        while any(len(request.tokens) < 5 for request in requests):
            engine.step()
        bound = type(engine.sequences.runner.bound_plans[0])
        run = bound.run

        def spoiled(this: Any, rows: int | None = None) -> None:
            run(this, rows)
            if "token" in this.outputs:
                this.outputs["largest"][0] = np.nan

        monkeypatch.setattr(bound, "run", spoiled)
        engine.step()
        monkeypatch.undo()
        finish(engine)
    assert isinstance(requests[0].error, BackendError) and "damaged" in str(requests[0].error)
    require_equal(requests[1].result, plain(model, TEXTS["p64"], N, **GREEDY))


def test_what_is_not_asked_for_may_be_damaged() -> None:
    choices = sound([4, 5], [1.0, np.inf])
    assert next(choices) == 4
    with pytest.raises(BackendError, match="largest value is inf"):
        next(choices)


def test_rounds_by_hand_bring_logits() -> None:
    spec = speculator(demo(), speculation(("mtp",), 3))
    logits = spec.prompt(0, PROMPT)
    n_vocab = demo().n_vocab
    chooser = Chooser(Sampler(SamplerParams(**GREEDY), n_vocab), n_vocab)
    tokens = [chooser.choose(logits, len(PROMPT))]
    while len(tokens) < N:
        entry = rr.speculative.Entry(0, tokens[-1], chooser)
        ((proposal, rows),) = spec.round([entry])
        assert rows.shape == (len(proposal.tokens) + 1, n_vocab)
        tokens += (chosen := list(spec.judge(proposal, rows)))
        spec.finish(proposal, chosen)
    assert tokens[:N] == plain(demo(), PROMPT, N, **GREEDY).tokens


def test_verifying_with_draws_and_with_logits_in_one_pass() -> None:
    """Tokens of all rows, logits of those alone that nobody draws for, in the items' order."""
    model = demo()
    n_vocab = model.tokenizer.n_vocab or model.n_vocab
    samplers = [Sampler(SamplerParams(seed=s, temperature=1.5), n_vocab) for s in range(5)]
    items = [(seq, [60 + seq, 70, 80 + seq]) for seq in range(5)]
    with model.session(64, 5, n_rs_seq=3) as session:
        want = session.verify(items).logits.copy()
        for seq in range(5):
            session.commit(seq, 0)
        for seen in ((), (1,), (0, 4), (0, 1, 2, 3), range(5)):
            draws = [None if i in seen else s.device_draw for i, s in enumerate(samplers)]
            found = session.verify(items, draws=draws)
            rows = [3 * i + j for i in seen for j in range(3)]
            np.testing.assert_array_equal(found.logits, want[rows])
            if len(seen) == 5:
                assert found.tokens is None
            for i in set(range(5)) - set(seen):
                assert found.tokens is not None and found.largest is not None
                for j in range(3):
                    row = want[3 * i + j, :n_vocab]
                    assert found.tokens[3 * i + j] == samplers[i].sample(row, j + 1)
                    assert found.largest[3 * i + j] == row.max()
            for seq in range(5):
                session.commit(seq, 0)


def test_inputs_of_draws() -> None:
    n = 8
    inputs = {name: np.full(n, 9.0) for name in ("temperature", "top_p", "min_p")}
    inputs |= {name: np.full(n, 9, np.int32) for name in ("top_k", "draw_position")}
    inputs["seed"] = np.full((n, 2), -1, np.int32)
    draws, one = Draws(inputs), DeviceDraw(5, 0.5, 0.9, 0.1, 2**33 + 4)
    draws.fill([(one, 3), (None, 2)], [4, 5, 6, 1, 2])
    assert inputs["top_k"].tolist() == [5, 5, 5, 1, 1, 1, 1, 1]
    assert inputs["temperature"].tolist() == [0.5] * 3 + [0.0] * 5
    assert inputs["seed"].tolist() == [[4, 2]] * 3 + [[0, 0]] * 2 + [[-1, -1]] * 3
    assert inputs["draw_position"].tolist() == [4, 5, 6, 1, 2, 9, 9, 9]
    draws.fill([(one, 1), (one, 1)], [7, 8])
    assert inputs["top_k"].tolist() == [5, 5] + [1] * 6 and one.candidates == CANDIDATES
    assert inputs["draw_position"].tolist()[:2] == [7, 8]


def test_bound_plans_are_of_one_class() -> None:
    """What `Fetched` counts on."""
    spec = speculator(demo(), speculation(("mtp",), 3))
    assert bound_type(spec) is type(demo().session(64).sequences.runner.bound_plans[0])
