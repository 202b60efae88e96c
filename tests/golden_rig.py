"""The demo model against float32 results of another implementation on the same weights."""

from __future__ import annotations

import numpy as np
import riverrun as rr
from demo import PROMPTS, demo
from oracles import COMPARISONS
from paths import DATA

ARRAYS = np.load(DATA / "golden.npz")
FILES = tuple(name.split()[-1] for name in COMPARISONS["test_golden"].cases["qwen35"])
# By how much a token has to lead to be the likeliest on every processor. Where weights are of block
# types, activations are rounded to 8 bits, and a last bit may send one to the next level: how far
# the best token leads then differs by up to 0.15 between two instruction sets (0.3 is twice that).
MARGINS = {"bf16": 0.05, "q8_0": 0.3}
CUTS = ((1,), (2,), (63,), (64, 65), (3, 100, 199))


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


def check_last_position(device: str, limit: float, name: str) -> None:
    """Logits and hidden row of a prompt's last token, by the weights in bf16."""
    logits, hidden = evaluate(demo(device, "bf16"), PROMPTS[name]["ids"], hidden=True)
    assert np.abs(logits[-1] - ARRAYS[f"{name}.logits"]).max() < limit
    assert np.abs(hidden[-1] - ARRAYS[f"{name}.hidden"]).max() < limit


def check_greedy(logits: np.ndarray, name: str, margin: float) -> None:
    """The likeliest tokens after a prompt, where they lead by this margin."""
    p = PROMPTS[name]
    got = logits[len(p["ids"]) - 1 :].argmax(-1)
    sure = np.array(p["greedy_margin"]) >= margin
    assert sure.sum() > 30
    np.testing.assert_array_equal(got[sure], np.array(p["greedy"])[sure])


def check_greedy_continuation(device: str, kind: str, name: str) -> None:
    """All of it in one pass."""
    p = PROMPTS[name]
    logits, _ = evaluate(demo(device, kind), p["ids"] + p["greedy"][:-1])
    check_greedy(logits, name, MARGINS[kind])


def check_split_prompt(device: str, cuts: tuple[int, ...], kind: str = "bf16") -> None:
    """Several passes give the bits of one."""
    p = PROMPTS["p200"]
    ids = p["ids"] + p["greedy"][:-1]
    m = demo(device, kind)
    whole, _ = evaluate(m, ids)
    parts, _ = evaluate(m, ids, cuts)
    np.testing.assert_array_equal(parts, whole)
    check_greedy(parts, "p200", MARGINS[kind])
