"""What rollback costs: bytes at the shapes of a large model, nothing where nothing recurs, and no
new plan however rounds turn out."""

from __future__ import annotations

import random

import pytest
import riverrun as rr
from riverrun.engine.memory import Demand, MemoryBytes, layouts
from riverrun.graph.errors import Unsupported
from riverrun.models.delta_net import DeltaNetShape
from riverrun.models.memories import RecurrentSpec
from riverrun.models.step import Capacity, StepGraph, StepShape
from rollback_rig import STRATEGIES, stream, tiny

# Qwen3.5-27B: 48 of its 64 layers are delta-net layers.
LAYERS = 48
LARGE = DeltaNetShape(k_heads=16, v_heads=48, dim=128, width=4, eps=1e-6, heads="tiled")
STATE = 4 * (48 * 128 * 128 + 3 * LARGE.channels)
ENTRY = 4 * (LARGE.channels + LARGE.key_dim + LARGE.value_dim + LARGE.v_heads)
WEIGHTS = 16.5e9  # bytes of the model at four bits


SPEC = RecurrentSpec(tuple(range(LAYERS)), LARGE.memory)


def large(strategy: str, drafts: int) -> MemoryBytes:
    """The recurrent memory of one sequence."""
    (layout,) = layouts(SPEC, Demand(4096, 1, 512, strategy, drafts))
    return layout.nbytes(layout.size(Capacity(0, 16, 1)))


@pytest.mark.parametrize("drafts", [3, 16, 64])
def test_bytes_beyond_the_live_state_of_a_large_model(drafts: int) -> None:
    found = {strategy: large(strategy, drafts) for strategy in STRATEGIES}
    for b in found.values():
        assert b.recurrent == LAYERS * STATE and b.attention == 0
    beyond = {strategy: b.rollback + b.host for strategy, b in found.items()}
    assert beyond["snapshots"] == LAYERS * drafts * STATE
    assert beyond["checkpoint:host"] == found["checkpoint:host"].host == LAYERS * STATE
    assert beyond["checkpoint:device"] == found["checkpoint:device"].rollback == LAYERS * STATE
    assert beyond["replay"] == LAYERS * 2 * (drafts + 1) * ENTRY
    assert 15 * beyond["replay"] <= beyond["snapshots"]
    assert beyond["replay"] < 0.035 * WEIGHTS


def test_what_is_declared_is_what_graphs_have() -> None:
    for layout in layouts(SPEC, Demand(4096, 2, 512, "auto", 3)):
        c = layout.size(Capacity(0, 16, 1))
        step = StepGraph("large", StepShape(1, 1, 1), c, {})
        for layer in SPEC.layers:
            step.recurrent(layer, LARGE.memory)
        nodes = {n.name: n.specs[0] for n in step.g.nodes if n.op.name == "state"}
        assert nodes == SPEC.states(c)


@pytest.mark.parametrize(
    "n_seqs,drafts,budget,chosen",
    [
        (1, 3, 1 << 30, "replay"),
        (1, 21, 0, "replay"),  # 2 * 22 entries take just less than a state
        (1, 22, 0, "checkpoint:device"),
        (1, 36, 1 << 30, "replay"),  # 250 MiB, a quarter of the budget
        (1, 64, 1 << 30, "checkpoint:device"),  # 440 MiB of log, 150 of state
        (1, 64, 2 << 30, "replay"),
        (4, 16, 1 << 30, "replay"),  # 459 MiB of logs, 599 of states
        (4, 64, 1 << 30, "checkpoint:device"),
    ],
)
def test_auto_weighs_a_log_against_a_copy(
    n_seqs: int, drafts: int, budget: int, chosen: str
) -> None:
    found = layouts(SPEC, Demand(4096, n_seqs, 512, "auto", drafts, on_host=False))
    able = [x for x in found if x.affordable(x.size(Capacity(0, 16, n_seqs)), budget)]
    assert able[0].strategy is not None and able[0].strategy.name == chosen


def test_a_plan_says_what_was_chosen() -> None:
    model = tiny()
    assert "(replay)" in model.plan_session(256, n_rs_seq=4).summary
    plan = model.plan_session(256, n_rs_seq=100, budget=0)
    assert plan.strategy.name == "checkpoint:host"
    assert "(checkpoint:host)" in plan.summary and "auto rather than replay" in plan.summary
    assert "auto" not in model.plan_session(256, n_rs_seq=4, rollback="replay").summary


def test_a_plan_says_what_states_along_prompts_may_take() -> None:
    for variant, options, said in (
        ("qwen35", {}, "states along prompts up to 256.0 MiB"),
        ("qwen35", {"cache_bytes": 3 << 20}, "states along prompts up to 3.0 MiB"),
        ("qwen35", {"cache_bytes": 0}, ""),
        ("llama", {}, ""),
    ):
        told = tiny(variant).plan_session(256, **options).summary
        assert told.endswith(said) and ("along prompts" in told) == bool(said)


@pytest.mark.parametrize("variant", ["llama", "gemma3", "qwen35,none recurrent"])
@pytest.mark.parametrize("strategy", ["auto", *STRATEGIES])
def test_plain_attention_needs_nothing_to_roll_back(variant: str, strategy: str) -> None:
    model = tiny(variant)
    for n_ctx in (256, 4096):
        plan = model.plan_session(n_ctx, 2, rollback=strategy, n_rs_seq=8)
        without = model.plan_session(n_ctx, 2)
        assert (plan.bytes.rollback, plan.bytes.host, plan.bytes.recurrent) == (0, 0, 0)
        assert plan.bytes == without.bytes
    session = model.session(256, 2, rollback=strategy, n_rs_seq=8)
    assert session.pools.nbytes == plan.bytes.attention * 256 // 4096 or variant == "gemma3"
    assert {n.split(".")[0] for n in session.pools.specs} == {"cache_k", "cache_v"}
    tokens = stream(0)
    session.evaluate([(0, tokens[:7])])
    for size, keep in ((12, 5), (3, 0), (1, 1)):
        at = session.length()
        session.verify([(0, tokens[at : at + size])])
        assert session.memory.max_rollback(0) == size
        session.commit(0, keep)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_plan_announces_what_a_session_takes(strategy: str) -> None:
    for n_seqs, window in ((1, 1), (3, 8)):
        plan = tiny().plan_session(256, n_seqs, rollback=strategy, n_rs_seq=window)
        session = tiny().session(256, n_seqs, rollback=strategy, n_rs_seq=window)
        assert session.pools.nbytes == plan.bytes.device
        assert plan.strategy.name == strategy and f"({strategy})" in plan.summary
        if plan.bytes.host:
            for seq in range(n_seqs):
                session.verify([(seq, [1, 2])])
            copies = session.memory.parts[-1]._copies  # type: ignore[attr-defined]
            assert sum(a.nbytes for c in copies for a in c.values()) == plan.bytes.host


def test_auto_takes_what_the_backend_and_the_budget_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    model, plan = tiny(), rr.Model.plan
    assert model.plan_session(256, n_rs_seq=4).strategy.name == "replay"

    def without_logs(
        self: rr.Model, shape: StepShape, capacity: Capacity, kind: str, program: str = "trunk"
    ) -> object:
        if capacity.log:
            raise Unsupported("no logs here")
        return plan(self, shape, capacity, kind, program)

    monkeypatch.setattr(rr.Model, "plan", without_logs)
    found = model.plan_session(256, n_rs_seq=4)
    assert found.strategy.name == "snapshots"
    fits, less = found.bytes.rollback, found.bytes.rollback - 1
    assert model.plan_session(256, n_rs_seq=4, budget=fits).strategy.name == "snapshots"
    assert model.plan_session(256, n_rs_seq=4, budget=less).strategy.name == "checkpoint:host"
    asked = model.plan_session(256, n_rs_seq=4, budget=less, rollback="snapshots")
    assert asked.strategy.name == "snapshots"
    with pytest.raises(Unsupported, match="no logs here"):
        model.session(256, n_rs_seq=4, rollback="replay")


@pytest.mark.parametrize("n_seqs", [1, 3])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rounds_compile_nothing_new(strategy: str, n_seqs: int) -> None:
    drafts, rng, tokens = 4, random.Random(1), stream(0)
    model = tiny()
    session = model.session(512, n_seqs, rollback=strategy, n_rs_seq=drafts)
    for seq in range(n_seqs):
        session.prefill(tokens[:5], seq)
    session.sequences.prepare_drafts(drafts)
    before = len(model.plans._plans), len(session.sequences.runner.bound_plans)
    for _ in range(500):
        seqs = rng.sample(range(n_seqs), rng.randint(1, n_seqs))
        items = [(seq, tokens[: rng.randint(1, drafts + 1)]) for seq in seqs]
        session.verify(items)
        for seq, drafted in items:
            session.commit(seq, rng.randint(1, len(drafted)))
            if session.length(seq) > 400:
                session.clear(seq)
    assert (len(model.plans._plans), len(session.sequences.runner.bound_plans)) == before
