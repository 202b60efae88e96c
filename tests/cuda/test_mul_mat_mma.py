"""Products on tensor cores: every block type, shapes that do not fill tiles, splits of k, chosen
weights."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_rig import CAPABILITY, EMULATED, backend, needs_cuda, thinned
from riverrun.backends.harness import outline, run_case
from riverrun.graph.case import BoundCase, Case, bind_case, f32, fixed, rand
from riverrun.graph.dtype import dtype
from riverrun.ops.mul_mat import WEIGHT_TYPES, MulMat
from riverrun.ops.mul_mat_id import MulMatId

BLOCKS = tuple(t for t in WEIGHT_TYPES if dtype(t).block > 1)

pytestmark = needs_cuda
# In which order the emulator runs threads; a card does as it likes.
ORDERS = thinned(("any",), ("ascending", "descending", "shuffled"))


@pytest.fixture(params=ORDERS)
def order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One of these orders."""
    monkeypatch.setenv("RIVERRUN_EMULATE_ORDER", request.param)
    return str(request.param)


@pytest.fixture(autouse=True)
def _card(monkeypatch: pytest.MonkeyPatch) -> None:
    """One without products of warpgroups."""
    monkeypatch.setenv(CAPABILITY, "8.9")


def check(case: BoundCase, worst: float = 1e-5) -> None:
    """The kernel takes the case and keeps within a twentieth of what is allowed."""
    choice = backend().choose(outline(case))
    assert choice.kernel is not None, choice.why
    assert choice.kernel.isa == "mma" or (choice.kernel.isa == "wgmma" and not EMULATED)
    result = run_case(backend(), case, kind="prefill")
    assert result.status == "passed", f"{result.id}: {result.why}"
    assert max(result.nmse.values()) < worst


@pytest.mark.parametrize("of", BLOCKS)
def test_shapes(of: str, order: str) -> None:
    """Rows of w and of x beyond the tiles, halves of a unit of k, k split over blocks."""
    large = dtype(of).block == 256
    for n, m, k in (
        (9, 128, 256),
        (33, 130, 768 if large else 416),
        (70, 200, 512 if large else 96),
        (40, 300, 2048 if large else 992),
    ):
        check(bind_case(MulMat, Case(x=f32(n, k), w=rand(of, m, k))))


@pytest.mark.parametrize("of", ("q8_0", "q4_k", "q6_k"))
def test_widest_tile(of: str) -> None:
    """So many rows of w that a block takes 128 of x."""
    k = dtype(of).block if dtype(of).block == 256 else 96
    check(bind_case(MulMat, Case(x=f32(129, k), w=rand(of, 12801, k))))


def chosen(of: str, n: int, u: int, e: int, m: int, k: int, lowest: int = -1) -> BoundCase:
    """Pairs with experts of any number of rows, and with none."""
    ids = np.random.default_rng(n).integers(lowest, e, (n, u))
    label = f"{of},n={n},u={u},e={e}"
    x, w = f32(n, k), rand(of, e, m, k)
    return bind_case(MulMatId, Case(label, x=x, w=w, ids=fixed(ids, "i32")))


@pytest.mark.parametrize(
    "case",
    (
        chosen("q8_0", 40, 4, 8, 130, 96),
        chosen("q4_k", 60, 8, 5, 200, 512),
        chosen("q6_k", 33, 2, 30, 36, 256),
        chosen("mxfp4", 17, 3, 1, 128, 64, lowest=0),
        chosen("iq2_s", 21, 2, 6, 40, 512),
        chosen("iq3_xxs", 12, 2, 3, 130, 256),
    ),
    ids=lambda case: case.id,
)
def test_chosen_weights(case: BoundCase, order: str) -> None:
    """Experts that leave tiles unfilled, that nobody chose, and that many did."""
    check(case)


def test_missing_expert() -> None:
    """An index past the last expert is reported, and nothing is read through it."""
    ids = np.arange(40).reshape(20, 2) % 4
    ids[7, 1] = 4
    x, w = f32(20, 64), rand("q8_0", 4, 17, 64)
    case = bind_case(MulMatId, Case("missing", x=x, w=w, ids=fixed(ids, "i32")))
    result = run_case(backend(), case, kind="prefill")
    assert result.status == "failed" and "below 4, the number of experts, got 4" in result.why
