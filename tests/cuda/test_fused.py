"""Fused products on cards: the same bits for any number of rows, fewer launches, and results that
differ from those of the parts by roundings."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import riverrun as rr
from cuda_rig import backend, needs_cuda
from riverrun.backends.cpu_blocks import BlockRecoder
from riverrun.backends.harness import outline, run_case
from riverrun.backends.native import FUSE
from riverrun.backends.row_exact import check_rows
from riverrun.graph import OPS
from riverrun.graph.case import BoundCase, Case, bind_case, f32, rand
from riverrun.models.quantizing import find_mix
from riverrun.models.step import StepShape
from riverrun.models.synth import SHAPES, synthesize

pytestmark = needs_cuda
PROMPT, DRAFTS = [5, 77, 1500, 3000, 9], [3, 1, 4, 1500, 77, 2]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny hybrid model whose products all have kernels for fused nodes."""
    path, tiny = tmp_path_factory.mktemp("fused") / "tiny.gguf", SHAPES["tiny"]
    heads = {"ssm.time_step_rank": 16, "ssm.inner_size": 16 * 32}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SHAPES, "fused", replace(tiny, keys=tiny.keys | heads))
        synthesize("fused", find_mix("Q8_0"), path, BlockRecoder(1))
    return path


def opened(file: Path, monkeypatch: pytest.MonkeyPatch, fuses: bool) -> rr.Model:
    monkeypatch.setenv(FUSE, "1" if fuses else "0")
    return rr.load(file, device="cuda")


def decoded(model: rr.Model) -> np.ndarray:
    """Logits [tokens, vocabulary] of decoding one by one."""
    session = model.session(64, n_rs_seq=8)
    session.prefill(PROMPT)
    return np.stack([session.decode(token).copy() for token in DRAFTS])


@pytest.mark.parametrize("rows", [2, len(DRAFTS)])
def test_drafts_have_the_bits_of_single_tokens(
    file: Path, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = opened(file, monkeypatch, fuses=True)
    session = model.session(64, n_rs_seq=8)
    session.prefill(PROMPT)
    logits = session.verify([(0, DRAFTS[:rows])]).logits
    assert np.array_equal(logits, decoded(model)[:rows])


def test_fused_or_not_is_a_matter_of_rounding(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, parts = (decoded(opened(file, monkeypatch, fuses)) for fuses in (True, False))
    assert np.abs(ours - parts).max() < 2e-2 * parts.std()


def test_a_step_takes_fewer_launches(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launches, ops = [], []
    for fuses in (True, False):
        model = opened(file, monkeypatch, fuses)
        session = model.session(64)
        plan = model.plan(StepShape(1, 1, 1), session.sequences.plan.capacity, "step")
        bound = plan.bind(model.weights, session.pools)
        launches.append(bound.launches)
        ops.append(Counter(choice.kernel.op for choice in plan.choices))
    assert not ops[0].keys() & {"mul_mat", "swiglu"}
    assert ops[0]["conv_delta_mix"] == 6
    assert ops[1].keys().isdisjoint({"mul_mats", "norm_mul_mats", "glu_mul_mat"})
    # Of a layer: two norms with products and two more products, each in two launches, and what
    # mixes tokens in one, or in three.
    blocks = 8
    assert launches[0] is not None and launches[0] <= 11 * blocks and launches[1] > 20 * blocks


def wide(op: str, blocks: int) -> BoundCase:
    """A case with rows of so many times 256 values."""
    k, w = 256 * blocks, rand("q4_k", 17, 256 * blocks)
    x, up, eps = f32(2, k), f32(2, k), 1e-6
    named = {
        "norm_mul_mats": {"x": x, "weight": f32(k), "ws": (w,), "eps": eps},
        "add_norm_mul_mats": {"x": x, "delta": up, "weight": f32(k), "ws": (w,), "eps": eps},
        "glu_mul_mat": {"gate": x, "up": up, "w": w, "act": "silu"},
        "gated_norm_mul_mat": {
            **{"x": f32(2, 2 * blocks, 128), "weight": f32(128), "gate": f32(2, 2 * blocks, 128)},
            **{"w": w, "eps": eps},
        },
    }
    return bind_case(OPS[op], Case(f"wide,{blocks}", **named[op]))


@pytest.mark.parametrize("blocks", [5, 17, 32, 33])
@pytest.mark.parametrize(
    "op", ["norm_mul_mats", "add_norm_mul_mats", "glu_mul_mat", "gated_norm_mul_mat"]
)
def test_wide_rows_have_the_bits_of_single_ones(op: str, blocks: int) -> None:
    """Whatever the number of values that a block of the launch before the products makes."""
    case = wide(op, blocks)
    choice = backend().choose(outline(case))
    assert choice.kernel is not None and choice.kernel.isa == "step", choice.why
    result = run_case(backend(), case, kind="step")
    assert result.status == "passed", result.why
    result = check_rows([backend()], case, (1, 2, 9))
    assert result.status == "passed", result.why
