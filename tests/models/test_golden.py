"""The demo model against float32 results of another implementation on the same weights."""

from __future__ import annotations

import numpy as np
import pytest
from demo import PROMPTS, demo
from golden_rig import (
    ARRAYS,
    CUTS,
    FILES,
    check_greedy_continuation,
    check_last_position,
    check_split_prompt,
    evaluate,
)

DEVICES = ("reference", "cpu")


@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.parametrize("device,limit", [("reference", 2e-3), ("cpu", 0.1)])
def test_last_position(device: str, limit: float, name: str) -> None:
    check_last_position(device, limit, name)


@pytest.mark.parametrize("name", PROMPTS)
def test_top5_of_every_position(name: str) -> None:
    logits, _ = evaluate(demo("reference", "bf16"), PROMPTS[name]["ids"])
    ids, values = ARRAYS[f"{name}.top5"], ARRAYS[f"{name}.top5_logits"]
    for row, want, level in zip(logits, ids, values, strict=True):
        got = np.argsort(-row, kind="stable")[:5]
        # Order may differ only among tokens whose logits lie within 0.01 of each other.
        assert all(abs(row[g] - v) < 0.01 for g, v in zip(got, level, strict=True))
        assert np.abs(row[want] - level).max() < 0.01


@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("device", DEVICES)
def test_greedy_continuation(device: str, kind: str, name: str) -> None:
    check_greedy_continuation(device, kind, name)


# The reference takes a while, and test_architectures has every cut of smaller models.
SPLIT = [*(("cpu", cuts) for cuts in CUTS), ("reference", CUTS[-1])]


@pytest.mark.parametrize("device, cuts", SPLIT, ids=str)
def test_split_prompt(device: str, cuts: tuple[int, ...]) -> None:
    check_split_prompt(device, cuts)
