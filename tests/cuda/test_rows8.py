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


def pieces(own: np.ndarray) -> np.ndarray:
    """Of eights [.., 8, bytes]: 16 bytes of each row after another, then what is left of them."""
    *lead, eight, size = own.shape
    whole = size // 16 * 16
    first = own[..., :whole].reshape(*lead, eight, -1, 16).swapaxes(-3, -2)
    left = own[..., whole:]
    return np.concatenate([first.reshape(*lead, -1), left.reshape(*lead, -1)], axis=-1)


def q8_0_rows(blocks: np.ndarray) -> np.ndarray:
    """Codes of 256 values, then their eight steps."""
    of = blocks.reshape(*blocks.shape[:-1], 8, 34)
    steps, codes = of[..., :2], of[..., 2:]
    flat = (*blocks.shape[:-1], -1)
    return np.concatenate([codes.reshape(flat), steps.reshape(flat)], axis=-1)


def q6_k_rows(blocks: np.ndarray) -> np.ndarray:
    """Of each 64 values three times 16 codes of 6 bits above two of a fourth; scales, d."""
    lead = blocks.shape[:-1]
    low = blocks[..., :128].reshape(*lead, 2, 1, 64) >> np.array([[0], [4]], np.uint8) & 15
    high = blocks[..., 128:192].reshape(*lead, 2, 1, 32) >> np.arange(0, 8, 2, np.uint8)[:, None]
    codes = low.reshape(*lead, 4, 4, 16) | (high & 3).reshape(*lead, 4, 4, 16) << 4
    fourth = codes[..., 3:, :] >> np.array([[4], [2], [0]], np.uint8) & 3
    both = codes[..., :3, :] << 2 | fourth
    return np.concatenate([both.reshape(*lead, 192), blocks[..., 192:]], axis=-1)


IN_PIECES = {"q8_0": q8_0_rows, "q6_k": q6_k_rows}


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
    padded[:rows] = IN_PIECES[of](plain) if of in IN_PIECES else plain
    expected = padded.reshape(-1, 8, 3, block).swapaxes(1, 2)
    if of in IN_PIECES:
        expected = pieces(expected)
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
