"""Weights packed by eight rows: what packing makes of them, and who reads them."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_rig import STEP_TYPES, backend, needs_cuda, needs_warpgroups, product
from riverrun.backends import cuda, native
from riverrun.backends.cuda import ROWS8
from riverrun.backends.harness import outline, run_case
from riverrun.backends.native import type_id
from riverrun.graph.case import Case, bind_case, ints, rand
from riverrun.graph.dtype import dtype
from riverrun.ops.get_rows import GetRows

pytestmark = needs_cuda


@pytest.mark.parametrize("of", STEP_TYPES)
@pytest.mark.parametrize("rows", (8, 21))
def test_blocks_of_eight_rows_lie_together(of: str, rows: int) -> None:
    kind = dtype(of)
    block = 256 // kind.block * kind.nbytes
    plain = np.random.default_rng([rows, len(of)]).integers(0, 256, (rows, 3, block), np.uint8)
    size = cuda._cuda.packed_bytes(type_id(kind), ROWS8, rows, 3 * 256)
    made = np.full(size, 255, np.uint8)
    cuda._cuda.pack(type_id(kind), ROWS8, plain.reshape(-1), made, rows, 3 * 256)
    padded = np.zeros((-(-rows // 8) * 8, 3, block), np.uint8)
    padded[:rows] = plain
    expected = padded.reshape(-1, 8, 3, block).transpose(0, 2, 1, 3)
    np.testing.assert_array_equal(made, expected.reshape(-1))


def test_rows_that_are_not_whole_are_not_packed() -> None:
    assert cuda._cuda.packed_bytes(type_id(dtype("q8_0")), ROWS8, 8, 96) == 0
    assert cuda._cuda.packed_bytes(type_id(dtype("q2_k")), ROWS8, 8, 256) == 0


@pytest.mark.parametrize("rows", (64, 75))
def test_pieces_of_a_weight_make_the_whole(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = rand("q4_k", rows, 768).draw(np.random.default_rng(rows))
    whole = native.packed(cuda._cuda, tensor, ROWS8)
    monkeypatch.setattr(native, "_PIECE", 16 * 432)
    made = np.zeros_like(whole)
    pieces = native.Packing(cuda._cuda, tensor, ROWS8).pack(lambda at, n: made[at : at + n])
    assert len(list(pieces)) == -(-rows // 16)
    np.testing.assert_array_equal(made, whole)
    memory = backend().load_weights({"w": tensor}).buffer("w", ROWS8)
    found = np.zeros(memory.size, np.uint8)
    memory.read(0, found)
    np.testing.assert_array_equal(found, whole)


@needs_warpgroups
@pytest.mark.parametrize("of", STEP_TYPES)
def test_prompts_read_what_steps_read(of: str) -> None:
    """Rows of w that fill neither a tile nor eight; K of an odd number of half blocks, and more."""
    for n, m, k in ((70, 21, 256), (65, 135, 768)):
        case = product(of, n, m, k)
        for kind, isa in (("step", "step"), ("prefill", "wgmma")):
            choice = backend().choose(outline(case), exact=kind == "step")
            assert choice.kernel is not None and choice.kernel.isa == isa, choice.why
            assert ROWS8 in choice.layouts
            result = run_case(backend(), case, kind=kind)
            assert result.status == "passed", f"{kind} {result.id}: {result.why}"


@needs_warpgroups
@pytest.mark.parametrize("of", STEP_TYPES)
def test_single_rows_are_read_packed(of: str) -> None:
    case = bind_case(GetRows, Case(f"{of}", table=rand(of, 21, 512), ids=ints(20, 0, 7, 8, 13, 20)))
    assert ROWS8 in backend().choose(outline(case)).layouts
    result = run_case(backend(), case, kind="step")
    assert result.status == "passed", result.why
