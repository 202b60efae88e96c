"""Products on tensor cores: every block type, shapes that do not fill tiles, splits of k."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache

import pytest
import riverrun.models.quant  # noqa: F401
from riverrun.backends.cuda import CudaBackend, cards, emulated
from riverrun.backends.harness import outline, run_case
from riverrun.graph.case import BoundCase, Case, bind_case, f32, rand
from riverrun.graph.dtype import dtype
from riverrun.graph.errors import BackendError
from riverrun.ops.mul_mat import WEIGHT_TYPES, MulMat

BLOCKS = tuple(t for t in WEIGHT_TYPES if dtype(t).block > 1)


@cache
def backend() -> CudaBackend:
    """The first card. Skips where there is none."""
    try:
        cards()
    except BackendError as error:
        pytest.skip(f"no CUDA device: {error}")
    return CudaBackend()


@pytest.fixture(params=("ascending", "descending", "shuffled"))
def order(request: pytest.FixtureRequest) -> Iterator[str]:
    """In which order the emulator runs threads; a card does as it likes."""
    backend()
    if not emulated() and request.param != "ascending":
        pytest.skip("only the emulator has orders")
    before = os.environ.get("RIVERRUN_EMULATE_ORDER")
    os.environ["RIVERRUN_EMULATE_ORDER"] = request.param
    yield request.param
    del os.environ["RIVERRUN_EMULATE_ORDER"]
    if before is not None:
        os.environ["RIVERRUN_EMULATE_ORDER"] = before


def check(case: BoundCase, worst: float = 1e-5) -> None:
    """The kernel takes the case and keeps within a twentieth of what is allowed."""
    _, kernel, _, why = backend().choose(outline(case))
    assert kernel >= 0, why
    assert backend().kernels[kernel]["isa"] == "mma"
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
