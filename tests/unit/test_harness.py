"""The harness that checks kernels: it passes what is right and finds each kind of wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, ClassVar

import numpy as np
import pytest
import riverrun.ops  # noqa: F401
from riverrun.backends import harness, open_backend
from riverrun.backends.array import ArrayBackend
from riverrun.backends.harness import build, compare, run_case
from riverrun.backends.tolerance import DEFAULT, bound
from riverrun.graph import OPS, Op, TensorSpec, dtype, register
from riverrun.graph.case import BoundCase, Case, f32, op_cases
from riverrun.graph.errors import GraphError

NAN, INF = np.nan, np.inf


def case(op: str, part: str = "") -> BoundCase:
    """The first case of an op whose id has this in it."""
    return next(c for c in op_cases(OPS[op]) if part in c.id)


@pytest.mark.parametrize(
    ("have", "want", "problem"),
    [
        ([1.0, 2.0], [1.0, 2.0], ""),
        ([1.0, NAN, INF], [1.0, NAN, INF], ""),
        ([1.0, 2.001], [1.0, 2.0], "NMSE 2e-07 is over 1e-09"),
        ([1.0, NAN], [1.0, 2.0], "NaN or infinity where"),
        ([1.0, 2.0], [1.0, NAN], "NaN or infinity where"),
        ([1.0, INF], [1.0, 2.0], "infinity where the reference is finite"),
        ([1.0, 3e38], [1.0, INF], "NaN or infinity where"),
        ([1.0, -INF], [1.0, INF], "NaN or infinity where"),
        ([0.0, 1e-6], [0.0, 0.0], ""),
        ([0.0, 1e-3], [0.0, 0.0], "NMSE 1e-06 is over 1e-09"),
        ([[1.0]], [1.0], r"shape (1, 1), expected (1,)"),
    ],
)
def test_floats_are_compared(have: list[float], want: list[float], problem: str) -> None:
    found = compare(np.array(have), np.array(want), 1e-9, {}, "y")
    assert found.startswith(problem) if problem else found == ""


def test_integers_are_equal_or_wrong() -> None:
    want = np.arange(5)
    assert compare(want, want, 1.0, {}, "y") == ""
    assert compare(want + [0, 0, 1, 1, 0], want, 1.0, {}, "y") == "2 values differ, first at 2"


@pytest.mark.parametrize("op", ["mul_mat", "mul_mat_id"])
def test_an_op_says_what_differs_from_the_default(op: str) -> None:
    parts = (":q8_0", ":f16") if op == "mul_mat" else ("[q8_0", "[f16")
    blocks, plain = (bound(build(case(op, part)).node) for part in parts)
    assert blocks == OPS[op].block_tolerance and plain == OPS[op].tolerance
    assert blocks > plain > DEFAULT
    assert bound(build(case("silu")).node) == DEFAULT and bound(build(case("cont")).node) == 0
    assert bound(build(case("get_rows", "q8_0")).node) == 0


NAN_ARRAY = np.full((2, 3), NAN, np.float32)


class Halves(Op):
    """y, z = x / 2, twice; what comes back is `given` where that is not None"""

    name, inputs, outputs = "halves", ("x",), ("y", "z")
    given: ClassVar[Any] = None

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, TensorSpec]:
        return x.like(), x.like(dtype=dtype("bf16"))

    def reference(self, x: np.ndarray) -> Any:
        half = x / np.float32(2)
        return (half, half) if self.given is None else self.given

    @staticmethod
    def cases() -> Iterable[Case]:
        yield Case(x=f32(2, 3))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (None, ""),
        (NAN_ARRAY, "should return 2 outputs, as infer does, got 1 output"),
        ((NAN_ARRAY,) * 3, "should return 2 outputs, as infer does, got 3 outputs"),
        ([NAN_ARRAY] * 2, "should return 2 outputs, as infer does, got 1 output"),
        (
            (NAN_ARRAY, NAN_ARRAY.T),
            r"output 'z' of 'reference' should be an array of float32 \(2, 3\), as infer says, got "
            r"an array of float32 \(3, 2\)",
        ),
        ((NAN_ARRAY.astype(float), NAN_ARRAY), r"output 'y' .* got an array of float64 \(2, 3\)"),
        ((NAN_ARRAY, np.ones((2, 3), np.int32)), r"output 'z' .* got an array of int32 \(2, 3\)"),
        ((NAN_ARRAY, None), "output 'z' .* got NoneType"),
        ((np.float32(1), NAN_ARRAY), "output 'y' .* got float32"),
    ],
    ids=["right", "one", "three", "list", "shape", "f64", "i32", "none", "scalar"],
)
@pytest.mark.parametrize("device", ["reference", "array", "harness"])
def test_a_reference_that_disagrees_with_infer_is_an_error(
    request: pytest.FixtureRequest, device: str, given: Any, why: str
) -> None:
    made = register(type("Made", (Halves,), {"given": given}))
    request.addfinalizer(lambda: OPS.pop("halves"))
    (tried,) = op_cases(made)
    backend = ArrayBackend(np) if device == "array" else open_backend("reference")
    built = build(tried)
    with nullcontext() if not why else pytest.raises(GraphError, match=f"^halves: .*{why}"):
        if device == "harness":
            harness.expected(tried, built.node.specs)
        else:
            harness.execute(backend, built)


Change = Callable[[list[np.ndarray]], None]


def spoil(index: int) -> Change:
    """Changes one element of an output."""

    def change(outputs: list[np.ndarray]) -> None:
        flat = outputs[index].reshape(-1)
        flat[flat.size // 2] += 1

    return change


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize(
    ("op", "output", "change"),
    [
        ("rms_norm", "y", spoil(0)),
        ("top_k", "values", spoil(0)),
        ("top_k", "indices", spoil(1)),
        ("argmax", "y", spoil(0)),
        ("write_rows", "state_out", spoil(0)),
        ("gated_delta_net", "o", spoil(0)),
        ("gated_delta_net", "state_out", spoil(1)),
    ],
)
def test_one_wrong_element_fails_the_case(
    monkeypatch: pytest.MonkeyPatch, device: str, op: str, output: str, change: Change
) -> None:
    backend, tried = open_backend(device, 1), case(op)
    assert run_case(backend, tried).status == "passed"
    right = harness.expected

    def wrong(case: BoundCase, specs: tuple) -> list[np.ndarray]:  # type: ignore[type-arg]
        outputs = [np.array(a) for a in right(case, specs)]
        change(outputs)
        return outputs

    monkeypatch.setattr(harness, "expected", wrong)
    result = run_case(backend, tried)
    assert result.status == "failed" and result.why.startswith(f"{output}: ")


def test_gaps_constants_and_states_become_what_they_are_in_a_model() -> None:
    kinds = {n.name: n.op.name for n in build(case("gated_delta_net")).graph.nodes if n.is_leaf}
    assert kinds["state"] == "state" and kinds["q"] == "input"
    norm = build(case("rms_norm", "gap"))
    assert norm.node.inputs[0] is not None and not norm.node.inputs[0].spec.contiguous
    assert np.isnan(norm.inputs["x"]).any()
    assert norm.node.inputs[1] is not None and norm.node.inputs[1].node.op.name == "constant"
