"""Faults that kernels of others had, planted one at a time: the suite's cases must find each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from riverrun.backends.cpu import BoundCpu, CpuBackend
from riverrun.backends.harness import run_case
from riverrun.graph import OPS, Op
from riverrun.graph.case import op_cases


def failures(op: str) -> list[str]:
    """Why small cases of an op fail on the CPU now: on a backend that has chosen no kernels yet, as
    those that it has see the attributes that were."""
    backend = CpuBackend(1, oversubscribe=True)
    cases = [c for c in op_cases(OPS[op]) if "perf" not in c.tags]
    results = [run_case(backend, c) for c in cases]
    return [r.why for r in results if r.status == "failed"]


def after_runs(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[BoundCpu], None]) -> None:
    """Let every run be followed by a fault."""
    run = BoundCpu.run

    def faulty(self: BoundCpu, rows: int | None = None) -> None:
        run(self, rows)
        spoil(self)

    monkeypatch.setattr(BoundCpu, "run", faulty)


def other(monkeypatch: pytest.MonkeyPatch, op: str, **changed: Callable[[Any], Any]) -> None:
    """Let kernels of an op see other attributes than its reference."""
    right = OPS[op].attributes

    def attributes(self: Op) -> dict[str, Any]:
        values = right(self)
        return values | {k: change(values[k]) for k, change in changed.items()}

    monkeypatch.setattr(OPS[op], "attributes", attributes)


def swap_heads(heads: str) -> str:
    return "grouped" if heads == "tiled" else "tiled"


@pytest.mark.parametrize("op", ["gated_delta_net", "attention"])
def test_a_wrong_head_mapping_is_found(monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    assert not failures(op)
    other(monkeypatch, op, heads=swap_heads)
    assert failures(op)


def test_a_window_off_by_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    other(monkeypatch, "attention", window=lambda w: w and w + 1)
    assert failures("attention")


@pytest.mark.parametrize("op", ["gated_delta_net", "ssm_conv"])
def test_state_planes_in_reversed_order_are_found(monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    def reverse(bound: BoundCpu) -> None:
        state = bound.outputs[OPS[op].outputs[1]]
        if state.ndim == 3:
            state[...] = state[:, ::-1].copy()

    after_runs(monkeypatch, reverse)
    assert failures(op)


@pytest.mark.parametrize("op", ["softmax", "rms_norm", "get_rows"])
def test_an_unwritten_element_is_found(monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    def forget(bound: BoundCpu) -> None:
        y = next(iter(bound.outputs.values()))
        if y.size:
            y.reshape(-1).view(np.uint32)[-1] = 0xFFFFFFFF

    after_runs(monkeypatch, forget)
    assert "NaN" in failures(op)[0]


def test_nan_for_a_fully_masked_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def divide_by_nothing(bound: BoundCpu) -> None:
        rows = bound.outputs["y"].reshape(-1, bound.outputs["y"].shape[-1])
        rows[(rows == 0).all(-1)] = np.nan

    assert not failures("softmax")
    after_runs(monkeypatch, divide_by_nothing)
    assert any("NaN" in why for why in failures("softmax"))


def test_a_modified_input_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(bound: BoundCpu) -> None:
        for array in bound.inputs.values():
            if array.size:
                array.reshape(-1).view(np.uint8)[0] ^= 1

    after_runs(monkeypatch, write)
    assert failures("silu")
