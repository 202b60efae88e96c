"""Fused products of prompts: what is multiplied goes straight into rows of halves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cuda_rig import Op, backend, needs_cuda, needs_warpgroups
from riverrun.backends.harness import outline, run_case
from riverrun.graph.case import Case, Declared, bind_case, f32, fixed, rand
from riverrun.graph.op import OPS

pytestmark = [needs_cuda, needs_warpgroups]
K = 1280


def stored(given: Declared, rng: np.random.Generator) -> Declared:
    """The same tensor with fixed values."""
    return fixed(rng.uniform(-1, 1, given.shape).astype(np.float32), given.dtype.name)


def weights(*types: str) -> tuple[Declared, ...]:
    return tuple(rand(of, m, K) for of, m in zip(types, (130, 48, 7), strict=False))


# Op -> its inputs with n rows.
FUSED: dict[str, Callable[[int], dict[str, Any]]] = {
    "glu_mul_mat": lambda n: {"gate": f32(n, K), "up": f32(n, K), "w": rand("q4_k", 130, K)},
    "gated_norm_mul_mat": lambda n: {
        "x": f32(n, K // 128, 128),
        "weight": f32(128),
        "gate": f32(n, K // 128, 128),
        "w": rand("q6_k", 130, K),
    },
    "norm_mul_mats": lambda n: {
        "x": f32(n, K, gap=32),
        "weight": f32(K),
        "ws": weights("q4_k", "q6_k", "q4_k"),
    },
    "add_norm_mul_mats": lambda n: {
        "x": f32(n, K),
        "delta": f32(n, K, gap=4),
        "weight": f32(K),
        "ws": weights("q5_k", "q4_k"),
    },
}
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "glu_mul_mat": {"act": "silu"},
    "gated_norm_mul_mat": {"eps": 1e-6},
    "norm_mul_mats": {"eps": 1e-6},
    "add_norm_mul_mats": {"eps": 1e-6},
}


def bound(op: str, inputs: dict[str, Any], **attributes: Any) -> Any:
    case = bind_case(OPS[op], Case(**inputs, **{**ATTRIBUTES[op], **attributes}))
    assert backend().choose(outline(case)).kernel.isa == "wgmma"
    return case


@pytest.mark.parametrize("op", FUSED)
def test_values(op: str) -> None:
    result = run_case(backend(), bound(op, FUSED[op](70)), kind="prefill")
    assert result.status == "passed", f"{result.id}: {result.why}"
    assert max(result.nmse.values()) < 1e-5


@pytest.mark.parametrize("act", ("gelu", "sigmoid"))
def test_activations(act: str) -> None:
    case = bound("glu_mul_mat", FUSED["glu_mul_mat"](40), act=act)
    result = run_case(backend(), case, kind="prefill")
    assert result.status == "passed", f"{result.id}: {result.why}"


@pytest.mark.parametrize("width", (8, 32, 64))
def test_narrow_heads(width: int) -> None:
    x = f32(40, K // width, width)
    inputs = {"x": x, "weight": f32(width), "gate": x, "w": rand("q4_k", 40, K)}
    result = run_case(backend(), bound("gated_norm_mul_mat", inputs), kind="prefill")
    assert result.status == "passed", f"{result.id}: {result.why}"


@pytest.mark.parametrize("most", (1e-20, 1e15))
def test_sums_of_squares_that_floats_do_not_hold(most: float) -> None:
    x = f32(40, K, lo=-most, hi=most)
    inputs = {"x": x, "weight": f32(K), "ws": weights("q4_k")}
    result = run_case(backend(), bound("norm_mul_mats", inputs, eps=0.0), kind="prefill")
    assert result.status == "passed", f"{result.id}: {result.why}"


def test_long_rows_are_read_again() -> None:
    """More than the registers of a block hold."""
    k = 24576
    inputs = {"x": f32(34, k), "weight": f32(k), "ws": (rand("q4_k", 5, k),)}
    result = run_case(backend(), bound("norm_mul_mats", inputs), kind="prefill")
    assert result.status == "passed", f"{result.id}: {result.why}"


@pytest.mark.parametrize("op", FUSED)
def test_rows_are_the_same_in_any_company(op: str) -> None:
    """All of 300 rows, and 64 of them alone."""
    rng = np.random.default_rng([3, len(op)])
    drawn: dict[str, Any] = {}
    for name, given in FUSED[op](300).items():
        if isinstance(given, tuple):
            drawn[name] = tuple(stored(w, rng) for w in given)
        else:
            drawn[name] = stored(given, rng)

    def run(rows: slice) -> list[np.ndarray]:
        own = {
            name: fixed(given.values[rows]) if given.shape[0] == 300 else given
            for name, given in drawn.items()
            if not isinstance(given, tuple)
        }
        outputs = Op(bound(op, drawn | own), kind="prefill").run().values()
        n = len(range(*rows.indices(300)))
        return [np.frombuffer(out, np.float32).reshape(n, -1) for out in outputs]

    every = run(slice(0, 300))
    for rows in (slice(0, 64), slice(100, 164)):
        for few, some in zip(run(rows), every, strict=True):
            assert few.tobytes() == some[rows].tobytes()
