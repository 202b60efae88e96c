"""Inputs that lie on the card alone: what sets them, and prompts that drafters read with them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cuda_rig import backend, needs_cuda
from demo import PROMPTS, demo
from riverrun.backends import cuda
from riverrun.engine.sequences import Sequences
from riverrun.graph import Graph
from riverrun.graph.errors import RequestError
from riverrun.speculative.mtp import Mtp

pytestmark = needs_cuda
N = 8


def twice(placed: tuple[str, ...] = ("x",)) -> cuda.BoundCuda:
    """y = x + x"""
    g = Graph("twice")
    x = g.input("x", (N, 32))
    g.output("y", g.add(x, x))
    plan = backend().compile(g)
    return plan.bind(plan.own_weights(), plan.pools(), placed=placed)


def drawn(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, 32)).astype(np.float32)


def check(bound: cuda.BoundCuda, pieces: list[np.ndarray]) -> None:
    want = np.zeros((N, 32), np.float32)
    rows = np.concatenate(pieces)
    want[: len(rows)] = rows
    bound.put("x", pieces)
    bound.run()
    np.testing.assert_array_equal(bound.outputs["y"], 2 * want)


@pytest.mark.parametrize("placed", [("x",), ()])
def test_rows_follow_one_another_and_the_rest_is_zero(placed: tuple[str, ...]) -> None:
    bound = twice(placed)
    assert set(bound.inputs) == {"x"} - set(placed)
    for sizes in ((8,), (1, 5), (2, 1, 3), (1,), (3, 5)):
        check(bound, [drawn(n, seed) for seed, n in enumerate(sizes)])
    check(bound, [drawn(16)[1::4], drawn(4)[:, ::-1]])


def test_rows_of_another_plan_go_from_where_they_lie() -> None:
    giver, bound = twice(), twice()
    check(giver, [drawn(8)])
    rows = giver.outputs["y"]
    for pieces in ([rows], [rows[2:5]], [drawn(1), rows[:6]], [rows[7:], rows[:1], drawn(2)]):
        check(bound, pieces)


@pytest.mark.parametrize("placed", [("x",), ()])
@pytest.mark.parametrize("shapes", [[(9, 32)], [(4, 32), (5, 32)], [(2, 31)], [(2, 32, 1)]])
def test_rows_that_do_not_fit_are_refused(
    placed: tuple[str, ...], shapes: list[tuple[int, ...]]
) -> None:
    with pytest.raises(RequestError, match=r"input 'x' should have 8 rows of \(32,\), got"):
        twice(placed).put("x", [np.zeros(shape, np.float32) for shape in shapes])


def test_prompts_are_read_as_through_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values of the block, bit for bit."""
    model, ids = demo("cuda"), PROMPTS["p200"]["ids"][:150]
    width, found = model.source.arch.hp.n_embd, []
    hidden = np.random.default_rng(4).standard_normal((150, width)).astype(np.float32)
    for placed in (True, False):
        able = replace(model.backend.capabilities, places_inputs=placed)
        monkeypatch.setattr(model.backend, "capabilities", able)
        drafter = Mtp(Sequences(model, model.plan_session(256)))
        runner = drafter.session.runner
        inputs = runner.step(128, 1, 0, False, "prefill").bound.inputs
        assert ("hidden_in" in inputs) != placed
        drafter.begin(0, ids)
        for start, stop in ((0, 30), (30, 150)):
            drafter.observe(0, ids[start:stop], hidden[start:stop], ids[:stop])
        pools = drafter.session.pools
        found.append({name: pools.raw(name) for name in pools.specs})
    for name, raw in found[0].items():
        assert raw.any()
        np.testing.assert_array_equal(raw, found[1][name])
