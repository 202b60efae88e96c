"""Products of few rows of x on tensor cores: types, shapes that fill no unit, parts of K, the rows
of x that share a launch, values that are not finite."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_rig import STEP_TYPES, backend, needs_cuda, product, thinned
from riverrun.backends.harness import Trial, build, outline, run_case
from riverrun.backends.row_exact import check_rows

# n, m, k: rows of w that fill no unit, parts of K of one and of several blocks, units that warps
# take whole, more parts than meet at a time.
SHAPES = (
    *((1, 16, 256), (3, 130, 1280), (9, 33, 4608), (17, 40, 512), (33, 47, 256)),
    *((2, 700, 512), (4, 75, 8448), (20, 700, 512)),
    *((4, 9, 28672), (6, 9, 20480)),  # rows of x that do not fit into shared memory
)

pytestmark = needs_cuda


@pytest.mark.parametrize("of", STEP_TYPES)
def test_shapes(of: str) -> None:
    """The kernel takes the case and keeps within 2e-6 of the reference."""
    for n, m, k in thinned(SHAPES, SHAPES):
        case = product(of, n, m, k)
        choice = backend().choose(outline(case), exact=True)
        assert choice.kernel is not None and choice.kernel.isa == "step", choice.why
        result = run_case(backend(), case, kind="step")
        assert result.status == "passed", f"{result.id}: {result.why}"
        assert max(result.nmse.values()) < 2e-6


@pytest.mark.parametrize("of", STEP_TYPES)
def test_rows_keep_their_bits(of: str) -> None:
    """Alone and among any others, in each form of the kernel."""
    result = check_rows([backend()], product(of, 2, 37, 768), (*range(1, 18), 33, 65, 260))
    assert result.status == "passed", result.why


@pytest.mark.parametrize("of", ("q4_k", "q6_k"))
def test_rows_keep_their_bits_among_many_rows_of_w(of: str) -> None:
    """Where warpgroups take all tiles in turn, have some of their own and go over a share twice."""
    for m in thinned((13300, 34816, 70000), (420, 1060, 2100)):
        result = check_rows([backend()], product(of, 2, m, 768), (1, 16, 17, 33))
        assert result.status == "passed", result.why


def test_rows_that_are_not_finite() -> None:
    """A row of x with a NaN or an infinity gives NaN, and the others what they give without it."""
    for n in (3, 12, 20):
        trial = Trial(backend(), build(product("q4_k", n, 37, 512)), "step")
        ((name, x),) = trial.built.inputs.items()
        for value in (np.nan, np.inf):
            x[1, 300] = value
            trial.bound.inputs[name][...] = x
            trial.bound.run()
            (y,) = trial.bound.outputs.values()
            assert np.isnan(y[1]).all() and np.isfinite(np.delete(y, 1, 0)).all()
