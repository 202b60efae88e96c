"""Ops that stand for several give the bits of those several: what a step computes does not depend
on whether its graph was fused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cuda_rig import backend, needs_cuda
from riverrun.backends.harness import Trial, build, execute
from riverrun.backends.native import FUSE
from riverrun.bench.op_cases import small_cases
from riverrun.graph import Graph, Node
from riverrun.graph.case import BoundCase
from riverrun.graph.passes.expand import expand

pytestmark = needs_cuda
MIXES = ("ssm_conv_silu", "delta_mix", "conv_delta_mix", "attention_prepare")
CASES = [case for case in small_cases() if case.op.name in MIXES]


@pytest.fixture(autouse=True)
def as_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are not fused again."""
    monkeypatch.setenv(FUSE, "0")


def keep_none(node: Node) -> bool:
    return False


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_mixes_have_the_bits_of_their_parts(case: BoundCase) -> None:
    whole = build(case)
    assert [k for k in backend().kernels if k["op"] == case.op.name]
    assert backend().supports(whole.node).ok
    parts: Graph = expand(whole.graph, keep_none)
    assert parts is not whole.graph
    want = execute(backend(), replace(whole, graph=parts))
    for label, array in execute(backend(), whole).items():
        assert array.tobytes() == want[label].tobytes(), label
        assert np.shape(array) == np.shape(want[label])


TWICE = [case for case in CASES if case.op.name == "conv_delta_mix" and "s=128" in case.id]


@pytest.mark.parametrize("case", TWICE, ids=[case.id for case in TWICE])
def test_runs_behind_one_another_count_anew(case: BoundCase) -> None:
    """States of the second run follow from those of the first."""
    whole = build(case)
    parts = replace(whole, graph=expand(whole.graph, keep_none))
    trials = Trial(backend(), whole), Trial(backend(), parts)
    for _ in range(3):
        for trial in trials:
            trial.bound.run()
        for label, array in trials[0].bound.outputs.items():
            assert array.tobytes() == trials[1].bound.outputs[label].tobytes(), label
