"""The null backend: what it records, and that a session runs on it."""

from __future__ import annotations

import numpy as np
import pytest
import riverrun as rr
from demo import PROMPTS
from paths import DEMO
from riverrun.backends import Pools, devices, open_backend
from riverrun.backends.null import NullBackend, NullPlan
from riverrun.graph import Graph, TensorSpec
from riverrun.graph.errors import GraphError

IDS = PROMPTS["p200"]["ids"]


def small() -> Graph:
    g = Graph("small")
    x = g.input("x", (2, 3))
    s = g.write_rows(g.state("s", (4, 3)), x, g.input("idx", (2,), "i32"))
    g.output("rows", g.view(s, axis=0, start=0, stop=3))
    g.output("half", g.cast(g.neg(x), to="bf16"))
    return g


def test_runs_are_recorded_and_nothing_is_computed() -> None:
    plan = NullBackend().compile(small())
    assert [n.op.name for n in plan.nodes] == ["write_rows", "neg", "cast"]
    pools = Pools(plan.states)
    bound = plan.bind(plan.own_weights(), pools)
    for rows in (None, 1):
        bound.inputs["x"][...] = rows or 7
        bound.run(rows)
    assert [r.rows for r in plan.log] == [None, 1]
    assert [r.inputs["x"].max() for r in plan.log] == [7, 1]
    assert not pools.array("s").any()
    assert {k: (v.shape, v.dtype.name) for k, v in bound.outputs.items()} == {
        "rows": ((3, 3), "float32"),
        "half": ((2, 3), "uint16"),
    }
    assert not any(v.any() for v in bound.outputs.values())


def test_weights_are_checked_like_anywhere() -> None:
    g = Graph()
    g.output("y", g.add(g.input("x", (2,)), g.weight("w", TensorSpec((2,)))))
    backend = NullBackend()
    plan = backend.compile(g)
    assert backend.plans == [plan]
    with pytest.raises(GraphError, match="no data for constant 'w'"):
        plan.bind(backend.load_weights({}), Pools({}))


def test_null_opens_by_name_but_is_no_device_for_models() -> None:
    assert open_backend("null").name == "null"
    assert "null" not in [d.name for d in devices()]


def test_a_session_runs_on_it() -> None:
    model = rr.load(DEMO, device="null")
    session = model.session(n_ctx=64, n_seqs=2)
    logits = session.prefill(IDS[:11])
    assert logits.shape == (model.n_vocab,) and not logits.any()
    session.evaluate([(0, [5]), (1, [6, 7])], want="all")
    assert (session.length(0), session.length(1)) == (12, 2)
    assert isinstance(model.backend, NullBackend)
    runs = [r for p in model.backend.plans for r in p.log]
    assert [r.rows for r in runs] == [11, 3]
    assert runs[0].inputs["tokens"][:11].tolist() == list(IDS[:11])
    assert runs[1].inputs["positions"][:3].tolist() == [11, 0, 1]
    assert all(isinstance(p, NullPlan) for p in model.backend.plans)


def test_generation_ends_at_its_limit() -> None:
    result = rr.load(DEMO, device="null").generate("def f(", 5, temperature=0).result
    assert len(result.tokens) == 5 and len(set(result.tokens)) == 1
    assert np.all(np.array(result.tokens) == result.tokens[0]) and result.finish_reason == "length"
