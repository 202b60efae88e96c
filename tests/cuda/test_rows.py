"""A row of a step has the same bits alone and among any others, on a card."""

from __future__ import annotations

from zlib import crc32

import pytest
from cuda_rig import backend, needs_cuda, thinned
from riverrun.backends.row_exact import check_rows
from riverrun.graph.case import BoundCase
from run_cases import first_of_patterns, small_cases

pytestmark = needs_cuda
# The others say why their rows say nothing.
CASES = [c for c in small_cases() if not (c.op.view or c.op.no_rows)]
SIZES = (*range(1, 18), 33, 65)
# 9 is the first size that products of several rows do not take in one go.
FEW = (2, 9, 17)
# Emulated, every case runs at one of these, and the first of each pattern of operands at all: each
# kernel meets each size, and each shape meets one.
FIRST = {case.id for case in first_of_patterns(CASES)}


def few(case: BoundCase) -> tuple[int, ...]:
    return FEW if case.id in FIRST else (FEW[crc32(case.id.encode()) % len(FEW)],)


def check(case: BoundCase, sizes: tuple[int, ...]) -> None:
    result = check_rows([backend()], case, sizes)
    if result.status == "refused":
        pytest.skip(result.why)
    assert result.status == "passed", result.why


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_rows_keep_their_bits(case: BoundCase) -> None:
    check(case, thinned(SIZES, few(case)))


def test_every_op_has_a_row_exact_kernel() -> None:
    kernels = backend().kernels
    assert {k["op"] for k in kernels} == {k["op"] for k in kernels if k["row_exact"]}
    for kernel in kernels:
        assert kernel["row_exact"] or kernel["bound"], f"{kernel['op']} says no bound"
