"""Every case of every op on the CUDA backend against the numpy reference, in both kinds of plan."""

from __future__ import annotations

import pytest
from cuda_rig import EMULATED, backend, needs_cuda
from riverrun.backends.harness import run_case
from riverrun.bench.op_cases import registered_cases, small_cases
from riverrun.graph.case import BoundCase

pytestmark = needs_cuda
CASES = small_cases()
MEASURED = [case for case in registered_cases() if "perf" in case.tags]


def check(case: BoundCase, kind: str) -> None:
    result = run_case(backend(), case, kind)
    assert result.status == "passed", result.why


@pytest.mark.parametrize("kind", ["step", "prefill"])
@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_cuda_agrees_with_the_reference(case: BoundCase, kind: str) -> None:
    check(case, kind)


@pytest.mark.skipif(EMULATED, reason="too large for emulated kernels")
@pytest.mark.parametrize("kind", ["step", "prefill"])
@pytest.mark.parametrize("case", MEASURED, ids=[case.id for case in MEASURED])
def test_cases_for_measuring_agree_too(case: BoundCase, kind: str) -> None:
    check(case, kind)
