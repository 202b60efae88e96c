"""Products of prompts with chosen weights on warpgroups: every block type, experts of many pairs,
of few and of none, tokens that are the same in any company."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from cuda_rig import CAPABILITY, EMULATED, Op, backend, needs_cuda, needs_warpgroups, thinned
from riverrun.backends.harness import outline, run_case
from riverrun.graph.case import BoundCase, Case, bind_case, f32, fixed, rand
from riverrun.graph.dtype import dtype
from riverrun.ops.mul_mat import WEIGHT_TYPES
from riverrun.ops.mul_mat_id import MulMatId

TYPES = ("bf16", *(t for t in WEIGHT_TYPES if dtype(t).block > 1))
ORDERS = thinned(("any",), ("ascending", "descending", "shuffled"))
Rows = Callable[[np.ndarray, np.ndarray], np.ndarray]

pytestmark = [needs_cuda, needs_warpgroups]


def drawn(n: int, u: int, e: int, skewed: bool = False, lowest: int = -1) -> np.ndarray:
    """Experts of n tokens; skewed: the first has half of all pairs. A negative one is none."""
    rng = np.random.default_rng([n, u, e])
    ids = rng.integers(lowest, e, (n, u))
    return np.where(rng.random((n, u)) < 0.5, 0, ids) if skewed else ids


def chosen(of: str, ids: np.ndarray, e: int, m: int, k: int, apart: bool = False) -> BoundCase:
    """apart: each pair has a row of x of its own."""
    n, u = ids.shape
    x = f32(n, u, k) if apart else f32(n, k)
    label = f"{of},n={n},u={u},e={e},m={m},k={k}" + (",apart" if apart else "")
    return bind_case(MulMatId, Case(label, x=x, w=rand(of, e, m, k), ids=fixed(ids, "i32")))


def check(case: BoundCase, worst: float = 1e-5) -> None:
    """The kernel takes the case and keeps within a twentieth of what is allowed."""
    assert backend().choose(outline(case)).kernel.isa == "wgmma"
    result = run_case(backend(), case, kind="prefill")
    assert result.status == "passed", f"{result.id}: {result.why}"
    assert max(result.nmse.values()) < worst


@pytest.mark.parametrize("of", TYPES)
def test_types(of: str) -> None:
    """Rows of w beyond the tiles, halves of a unit of k, an expert of none."""
    large = dtype(of).block == 256
    ids = drawn(40, 3, 7)
    ids[ids == 5] = 6
    check(chosen(of, ids, 8, 37, 512 if large else 416), 1e-10 if of == "bf16" else 1e-5)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("of", ("q4_k", "q8_0"))
def test_many_and_few(of: str, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts of several groups, of one of each width, of one pair; rows of x apart."""
    monkeypatch.setenv("RIVERRUN_EMULATE_ORDER", order)
    counts = (300, 70, 65, 64, 9, 8, 1, 0, 3)
    flat = np.repeat(np.arange(len(counts)), counts)
    ids = np.random.default_rng(5).permutation(flat).reshape(-1, 4)
    check(chosen(of, ids, len(counts), 130, 256, apart=True))
    check(chosen(of, ids, len(counts), 18, 256))


@pytest.mark.parametrize("ids", (np.full((96, 2), 3), np.full((33, 4), -1)), ids=("one", "none"))
def test_all_alike(ids: np.ndarray) -> None:
    check(chosen("q6_k", ids, 4, 20, 256))


def products(of: str, e: int, m: int, k: int) -> Rows:
    """(x, ids) -> the products with one set of weights, for any number of tokens."""
    w = fixed(np.random.default_rng([m, k]).uniform(-1, 1, (e, m, k)).astype(np.float32), of)

    def product(x: np.ndarray, ids: np.ndarray) -> np.ndarray:
        case = bind_case(MulMatId, Case("rows", x=fixed(x, "f32"), w=w, ids=fixed(ids, "i32")))
        assert backend().choose(outline(case)).kernel.isa == "wgmma"
        (out,) = Op(case, kind="prefill").run().values()
        return np.frombuffer(out, np.float32).reshape(*ids.shape, m)

    return product


@pytest.mark.parametrize("of", ("q4_k", "q8_0"))
def test_tokens_are_the_same_in_any_company(of: str) -> None:
    """Among 400 tokens, alone with 95 others, and in another place."""
    x = np.random.default_rng(7).standard_normal((400, 256), np.float32)
    ids = drawn(400, 2, 5, skewed=True)
    product = products(of, 5, 40, 256)
    everyone = product(x, ids)
    for rows in (slice(0, 96), slice(250, 400), slice(101, 220)):
        assert product(x[rows], ids[rows]).tobytes() == everyone[rows].tobytes()


@pytest.mark.parametrize("bad", (np.nan, np.inf))
def test_tokens_that_are_not_finite_are_alone(bad: float) -> None:
    x = np.random.default_rng(8).standard_normal((96, 256), np.float32)
    ids = drawn(96, 2, 3, lowest=0)
    product = products("q4_k", 3, 20, 256)
    good = product(x, ids)
    x[41, 17] = bad
    out = product(x, ids)
    assert not np.isfinite(out[41]).any()
    rest = np.arange(96) != 41
    assert out[rest].tobytes() == good[rest].tobytes()


def test_missing_expert() -> None:
    """An index past the last expert is reported, and nothing is read through it."""
    ids = np.arange(192).reshape(96, 2) % 4
    ids[7, 1] = 4
    result = run_case(backend(), chosen("q8_0", ids, 4, 17, 64), kind="prefill")
    assert result.status == "failed" and "below 4, the number of experts, got 4" in result.why


@pytest.mark.skipif(not EMULATED, reason="a card's capability cannot be set")
def test_other_cards_take_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    case = outline(chosen("q4_k", drawn(96, 2, 4), 4, 18, 256))
    for capability in ("8.0", "8.9", "10.0"):
        monkeypatch.setenv(CAPABILITY, capability)
        assert backend().choose(case).kernel.isa != "wgmma"
