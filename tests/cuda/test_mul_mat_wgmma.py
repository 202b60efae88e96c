"""Products of prompts on warpgroups: every block type, shapes that do not fill tiles, tiles of
every width, rows that are the same in any company."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from cuda_rig import CAPABILITY, EMULATED, Op, backend, needs_cuda, needs_warpgroups, thinned
from riverrun.backends.harness import outline, run_case
from riverrun.graph.case import Case, bind_case, f32, fixed, rand
from riverrun.graph.codec import decode
from riverrun.graph.dtype import dtype
from riverrun.ops.mul_mat import WEIGHT_TYPES, MulMat
from riverrun.ops.mul_mats import MulMats

TYPES = ("bf16", *(t for t in WEIGHT_TYPES if dtype(t).block > 1))


pytestmark = [needs_cuda, needs_warpgroups]
ORDERS = thinned(("any",), ("ascending", "descending", "shuffled"))
Rows = Callable[[np.ndarray], np.ndarray]


def products(of: str, m: int, k: int) -> Rows:
    """x -> x w^T with one weight, for any number of rows of x."""
    w = fixed(np.random.default_rng([m, k]).uniform(-1, 1, (m, k)).astype(np.float32), of)

    def product(x: np.ndarray) -> np.ndarray:
        case = bind_case(MulMat, Case("rows", x=fixed(x, "f32"), w=w))
        assert backend().choose(outline(case)).kernel.isa == "wgmma"
        (out,) = Op(case, kind="prefill").run().values()
        return np.frombuffer(out, np.float32).reshape(len(x), m)

    return product


@pytest.mark.parametrize("of", TYPES)
def test_shapes(of: str) -> None:
    """Rows of w and of x beyond the tiles, halves of a unit of k; within a twentieth of what is
    allowed."""
    large = dtype(of).block == 256
    for n, m, k in ((33, 130, 768 if large else 416), (70, 37, 256 if large else 96)):
        case = bind_case(MulMat, Case(x=f32(n, k), w=rand(of, m, k)))
        assert backend().choose(outline(case)).kernel.isa == "wgmma"
        result = run_case(backend(), case, kind="prefill")
        assert result.status == "passed", f"{result.id}: {result.why}"
        assert max(result.nmse.values()) < (1e-10 if of == "bf16" else 1e-5)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("of", ("q8_0", "iq2_s"))
def test_threads_in_any_order(of: str, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIVERRUN_EMULATE_ORDER", order)
    x = np.random.default_rng(9).standard_normal((40, 512), np.float32)
    product = products(of, 24, 512)
    first = product(x)
    assert product(x).tobytes() == first.tobytes() and np.isfinite(first).all()


@pytest.mark.parametrize("of", ("q4_k", "q8_0"))
def test_rows_are_the_same_in_any_company(of: str) -> None:
    """Among 700 rows, tiles of all widths; alone with 32 others; in another place."""
    x = np.random.default_rng(7).standard_normal((700, 256), np.float32)
    product = products(of, 270, 256)
    all_rows = product(x)
    for rows in (slice(0, 64), slice(650, 700), slice(301, 420), slice(90, 390)):
        assert product(x[rows]).tobytes() == all_rows[rows].tobytes()


@pytest.mark.parametrize("of", ("q4_k", "q8_0"))
def test_parts_of_k(of: str) -> None:
    """A tile that would leave blocks idle has its k in parts: with many rows of x a block gathers
    them, with few each is a block's, and the bits are the same."""
    x = np.random.default_rng(12).standard_normal((1024, 2048), np.float32)
    product = products(of, 30, 2048)
    all_rows = product(x)
    assert np.isfinite(all_rows).all()
    for rows in (slice(0, 64), slice(131, 270)):
        assert product(x[rows]).tobytes() == all_rows[rows].tobytes()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("of", ("q6_k", "bf16"))
def test_parts_of_k_in_any_order(of: str, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within what is allowed, whichever block comes first."""
    monkeypatch.setenv("RIVERRUN_EMULATE_ORDER", order)
    case = bind_case(MulMat, Case(x=f32(70, 2048), w=rand(of, 30, 2048)))
    assert backend().choose(outline(case)).kernel.isa == "wgmma"
    result = run_case(backend(), case, kind="prefill")
    assert result.status == "passed", f"{result.id}: {result.why}"
    assert max(result.nmse.values()) < (1e-10 if of == "bf16" else 1e-5)


TOGETHER = (("q4_k",) * 3, ("q4_k", "q6_k", "q4_k", "q8_0"), ("q8_0", "bf16"), ("iq4_xs",) * 9)


@pytest.mark.parametrize("types", TOGETHER, ids="+".join)
def test_weights_together(types: tuple[str, ...]) -> None:
    """Launches for each type, up to eight weights in one; columns of y that begin anywhere."""
    rng = np.random.default_rng([13, len(types)])
    rows = [130, 33, 48, 1, 7, 2, 128, 5, 3][: len(types)]
    ws = [
        fixed(rng.uniform(-1, 1, (m, 512)).astype(np.float32), of)
        for m, of in zip(rows, types, strict=True)
    ]
    x = rng.standard_normal((100, 512)).astype(np.float32)

    def product(part: np.ndarray) -> np.ndarray:
        case = bind_case(MulMats, Case("together", x=fixed(part, "f32"), ws=tuple(ws)))
        assert backend().choose(outline(case)).kernel.isa == "wgmma"
        (out,) = Op(case, kind="prefill").run().values()
        return np.frombuffer(out, np.float32).reshape(len(part), sum(rows))

    got = product(x)
    case = bind_case(MulMats, Case("together", x=fixed(x, "f32"), ws=tuple(ws)))
    result = run_case(backend(), case, kind="prefill")
    assert result.status == "passed", f"{result.id}: {result.why}"
    assert product(x[40:90]).tobytes() == got[40:90].tobytes()


def test_weights_of_other_types_are_left_to_other_kernels() -> None:
    ws = (rand("q4_k", 48, 256), rand("f32", 16, 256))
    case = outline(bind_case(MulMats, Case(x=f32(64, 256), ws=ws)))
    assert backend().choose(case).kernel is None or backend().choose(case).kernel.isa != "wgmma"


@pytest.mark.parametrize("bad", (np.nan, np.inf, -np.inf))
def test_rows_that_are_not_finite_are_alone(bad: float) -> None:
    x = np.random.default_rng(8).standard_normal((80, 256), np.float32)
    product = products("q4_k", 130, 256)
    good = product(x)
    x[41, 17] = bad
    out = product(x)
    assert not np.isfinite(out[41]).any()
    rest = np.arange(80) != 41
    assert out[rest].tobytes() == good[rest].tobytes()


@pytest.mark.parametrize("of", ("q4_k", "q5_k", "q6_k", "q8_0"))
def test_rows_of_any_size(of: str) -> None:
    """Rows of w and of x large and small, blocks of one row far apart: each sum is within what is
    registered, of its own rows' norms."""
    rng = np.random.default_rng([11, len(of)])
    m, k, n = 40, 512, 48
    w = rng.uniform(-1, 1, (m, k)) * 10.0 ** rng.uniform(-3, 3, (m, 1))
    w[: m // 2, :256] *= 1e-3
    w[7] = 0
    x = (rng.standard_normal((n, k)) * 10.0 ** rng.uniform(-25, 25, (n, 1))).astype(np.float32)
    x[5] = 0
    stored = fixed(w.astype(np.float32), of)
    case = bind_case(MulMat, Case("sizes", x=fixed(x, "f32"), w=stored))
    assert backend().choose(outline(case)).kernel.isa == "wgmma"
    (out,) = Op(case, kind="prefill").run().values()
    got = np.frombuffer(out, np.float32).reshape(n, m).astype(np.float64)
    exact = decode(dtype(of), stored.draw(rng).raw, (m, k)).astype(np.float64)
    want = x.astype(np.float64) @ exact.T
    norms = np.linalg.norm(x.astype(np.float64), axis=1)[:, None] * np.linalg.norm(exact, axis=1)
    assert np.isfinite(got).all()
    assert (np.abs(got - want) <= (4e-3 if of == "q8_0" else 1e-3) * norms).all()


@pytest.mark.skipif(not EMULATED, reason="a card's capability cannot be set")
def test_other_cards_take_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    case = outline(bind_case(MulMat, Case(x=f32(64, 256), w=rand("q4_k", 130, 256))))
    for capability in ("8.0", "8.9", "10.0", "12.0"):
        monkeypatch.setenv(CAPABILITY, capability)
        assert backend().choose(case).kernel.isa != "wgmma"
