"""The demo model against float32 results of another implementation on the same weights."""

from __future__ import annotations

import numpy as np
import pytest
import riverrun as rr
from demo import PROMPTS, demo
from paths import DATA

ARRAYS = np.load(DATA / "golden.npz")
DEVICES = ("reference", "cpu")
FILES = ("bf16", "q8_0")


def evaluate(
    m: rr.Model, ids: list[int], cuts: tuple[int, ...] = (), hidden: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Logits and hidden rows of every position, evaluated in passes that end at the cuts."""
    session = m.session(n_ctx=512, cache_type_k="f32", cache_type_v="f32")
    logits, rows, at = [], [], 0
    for end in (*cuts, len(ids)):
        part = session.evaluate([(0, ids[at:end])], want="all", hidden=hidden)
        logits.append(part.logits.copy())
        if part.hidden is not None:
            rows.append(part.hidden.copy())
        at = end
    return np.concatenate(logits), np.concatenate(rows) if rows else np.empty(0)


@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.parametrize("device,limit", [("reference", 2e-3), ("cpu", 0.1)])
def test_last_position(device: str, limit: float, name: str) -> None:
    logits, hidden = evaluate(demo(device, "bf16"), PROMPTS[name]["ids"], hidden=True)
    assert np.abs(logits[-1] - ARRAYS[f"{name}.logits"]).max() < limit
    assert np.abs(hidden[-1] - ARRAYS[f"{name}.hidden"]).max() < limit


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
    p = PROMPTS[name]
    logits, _ = evaluate(demo(device, kind), p["ids"] + p["greedy"][:-1])
    got = logits[len(p["ids"]) - 1 :].argmax(-1)
    sure = np.array(p["greedy_margin"]) >= 0.05
    assert sure.sum() > 30
    np.testing.assert_array_equal(got[sure], np.array(p["greedy"])[sure])


@pytest.mark.parametrize("cuts", [(1,), (2,), (63,), (64, 65), (3, 100, 199)], ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_split_prompt(device: str, cuts: tuple[int, ...]) -> None:
    p = PROMPTS["p200"]
    ids = p["ids"] + p["greedy"][:-1]
    m = demo(device, "bf16")
    whole, _ = evaluate(m, ids)
    parts, _ = evaluate(m, ids, cuts)
    np.testing.assert_array_equal(parts, whole)
    sure = np.array(p["greedy_margin"]) >= 0.05
    got = parts[len(p["ids"]) - 1 :].argmax(-1)
    np.testing.assert_array_equal(got[sure], np.array(p["greedy"])[sure])
