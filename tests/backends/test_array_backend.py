"""The reference on an array module: what stays in it, what goes through the host, the results."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import fake_device
import numpy as np
import pytest
from riverrun.backends import Pools, open_backend
from riverrun.backends.array import ArrayBackend
from riverrun.backends.harness import run_case
from riverrun.graph import OPS, Graph, Op, TensorSpec, host_tensor, register
from riverrun.graph.case import Case, f32, op_cases

NATIVE = ("concat", "cumsum", "get_rows", "l2_norm", "permute", "rms_norm", "softmax", "view")


@cache
def device() -> ArrayBackend:
    """A backend on arrays that do not convert themselves."""
    return ArrayBackend(fake_device)


@pytest.mark.parametrize("name", NATIVE)
def test_plain_references_are_native(name: str) -> None:
    assert device().host_reason(OPS[name]) == ""


def test_a_reference_that_needs_numpy_runs_on_the_host() -> None:
    why = device().host_reason(OPS["rope"])
    assert why.startswith("rope[") and "TypeError" in why


@pytest.mark.parametrize("name", ["rms_norm", "add", "rope", "write_rows", "mul_mat", "argmax"])
def test_cases_pass_either_way(name: str) -> None:
    cases = [c for c in op_cases(OPS[name]) if "perf" not in c.tags][::5]
    results = [run_case(device(), c) for c in cases]
    assert [r for r in results if r.status != "passed"] == []


def test_numpy_itself_is_an_array_module() -> None:
    backend = ArrayBackend(np)
    assert backend.name == "array:numpy"
    for name in ("add", "rope", "attention", "gated_delta_net", "view", "topk_moe"):
        assert backend.host_reason(OPS[name]) == ""


@pytest.fixture
def spy() -> Iterator[list[tuple[str, type]]]:
    """Two ops that note what their references get: one stays in the module, one leaves it."""
    seen: list[tuple[str, type]] = []

    class Doubles(Op):
        """y = 2 x"""

        inputs = ("x",)

        def infer(self, x: TensorSpec) -> TensorSpec:
            return x.like()

        @classmethod
        def cases(cls) -> Any:
            return [Case(x=f32(2, 3))]

    @register
    class Stays(Doubles):
        """y = 2 x"""

        name = "spy_stays"

        def reference(self, x: Any) -> Any:
            seen.append((self.name, type(x)))
            return x * np.float32(2)

    @register
    class Leaves(Doubles):
        """y = 2 x"""

        name = "spy_leaves"

        def reference(self, x: Any) -> Any:
            seen.append((self.name, type(x)))
            return np.array([[2 * float(v) for v in row] for row in x], np.float32)

    yield seen
    del OPS["spy_stays"], OPS["spy_leaves"]


def test_values_stay_on_the_device_between_native_ops(spy: list[tuple[str, type]]) -> None:
    g: Any = Graph()
    x = g.input("x", (2, 3))
    g.output("y", g.spy_stays(g.spy_leaves(g.spy_stays(x))))
    backend = ArrayBackend(fake_device)
    plan = backend.compile(g)
    assert [n for n in backend.native if n.startswith("spy")] == ["spy_stays"]
    assert "gives numpy.ndarray" in backend.host_reason(OPS["spy_leaves"])
    spy.clear()
    assert plan(x=np.ones((2, 3))).tolist() == [[8] * 3] * 2
    assert spy == [
        ("spy_stays", fake_device.ndarray),
        ("spy_leaves", np.ndarray),
        ("spy_stays", fake_device.ndarray),
    ]
    plan(x=np.zeros((2, 3)))
    assert len(spy) == 6


def test_an_op_that_is_wrong_on_the_device_runs_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = ArrayBackend(fake_device)
    monkeypatch.setattr(OPS["silu"], "reference", lambda self, x: np.zeros_like(x))
    assert backend.host_reason(OPS["silu"]) == ""
    right = ArrayBackend(fake_device)
    sub = fake_device.ndarray

    def half_right(self: Op, x: Any) -> Any:
        return x * np.float32(1 if isinstance(x, sub) else 2)

    monkeypatch.setattr(OPS["silu"], "reference", half_right)
    assert "NMSE" in right.host_reason(OPS["silu"])


def test_ops_without_cases_run_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OPS["cumsum"], "cases", staticmethod(lambda: ()))
    backend = ArrayBackend(fake_device)
    assert backend.host_reason(OPS["cumsum"]) == "it has no cases to try"
    g = Graph()
    g.output("y", g.cumsum(g.input("x", (1, 3)), axis=1))
    assert backend.compile(g)(x=[[1, 2, 3]]).tolist() == [[1, 3, 6]]


def test_weights_states_and_stored_types() -> None:
    def make() -> Graph:
        g = Graph()
        x, idx = g.input("x", (2, 32)), g.input("idx", (2,), "i32")
        kept = g.write_rows(g.state("s", (4, 16), "bf16"), g.mul_mat(x, w(g)), idx)
        g.output("seen", g.get_rows(kept, idx))
        g.output("raw", kept)
        return g

    def w(g: Graph) -> Any:
        return g.constant(host_tensor(np.eye(16, 32) / 3, "q8_0"), "w")

    plans = [b.compile(make()) for b in (device(), open_backend("reference"))]
    bound = [p.bind(p.own_weights(), Pools(p.states)) for p in plans]
    for to in ([1, 3], [3, 0]):
        for b in bound:
            b.inputs["x"][...] = np.arange(64).reshape(2, 32)
            b.inputs["idx"][...] = to
            b.run()
        for name in ("seen", "raw"):
            np.testing.assert_array_equal(bound[0].outputs[name], bound[1].outputs[name])
    assert isinstance(bound[0].outputs["seen"], np.ndarray)
