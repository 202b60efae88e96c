"""Attention on tensor cores: values, and what bits depend on, for prompts and for few queries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_rig import Op, backend, needs_cuda
from riverrun.backends.harness import build, run_case
from riverrun.graph.case import BoundCase, Case, bind_case, f32, fixed, rand
from riverrun.ops.attention import Attention

pytestmark = needs_cuda
HELD = 5  # pages of a pool; sequences have the same ones again and again


def attention(
    label: str,
    *seqs: tuple[int, int],
    d: int = 64,
    heads: tuple[int, int] = (1, 2),
    of: str = "f16",
    page: int = 64,
    pad: int = 0,
    q_size: float = 1.0,
    sinks: float = 0.0,
    given: dict[str, Any] | None = None,
    **attrs: Any,
) -> BoundCase:
    """seqs: first position and number of queries of each sequence; heads: of keys, and queries of
    each; given: inputs in place of random ones."""
    pages = -(-max(first + count for first, count in seqs) // page)
    positions = [first + i for first, count in seqs for i in range(count)] + [-1] * pad
    inputs = {
        "q": f32(len(positions), heads[0] * heads[1], d, lo=-q_size, hi=q_size),
        "k": rand(of, HELD * page, heads[0], d),
        "v": rand(of, HELD * page, heads[0], d),
        "seq_offsets": fixed(np.cumsum([0, *(count for _, count in seqs)]), "i32"),
        "positions": fixed(np.array(positions, np.int32), "i32"),
        "block_table": fixed(np.arange(len(seqs) * pages).reshape(-1, pages) % HELD, "i32"),
    }
    if sinks:
        inputs["sinks"] = f32(heads[0] * heads[1], lo=-sinks, hi=sinks)
    inputs |= given or {}
    attrs = {"scale": d**-0.5, "heads": "grouped", "mask": "causal", "page": page} | attrs
    return bind_case(Attention, Case(label, **inputs, **attrs))


def chosen(case: BoundCase, kind: str) -> tuple[str, bool]:
    """The kernel of a plan of this kind, and whether its rows are exact."""
    kernel = backend().choose(build(case).node, kind == "step").kernel
    return kernel.isa, kernel.row_exact


PROMPTS = [
    attention("d=64", (0, 70)),
    attention("d=96", (10, 64), d=96, page=16),
    attention("d=128", (50, 64), d=128, heads=(2, 1)),
    attention("d=256", (30, 64), d=256, heads=(1, 1)),
    attention("bf16", (60, 64), of="bf16"),
    attention("several", (0, 33), (90, 4), (7, 30), heads=(2, 3), pad=3),
    attention("window", (20, 64), (100, 5), window=20),
    attention("full", (0, 9), (80, 60), mask="full", window=70),
    attention("capped", (40, 64), softcap=2.0, q_size=8.0, sinks=3.0),
    attention("sharp", (64, 64), q_size=100.0, sinks=40.0),
]


@pytest.mark.parametrize("case", PROMPTS, ids=[case.id for case in PROMPTS])
def test_prompts_are_what_the_reference_says(case: BoundCase) -> None:
    assert chosen(case, "prefill") == ("mma", False)
    result = run_case(backend(), case, "prefill")
    assert result.status == "passed", result.why


@pytest.mark.parametrize("of", ["f16", "q8_0"])
@pytest.mark.parametrize("last", [8190, 8400, 32766, 33000])
def test_splits_of_every_length(of: str, last: int) -> None:
    """A window around the positions from which on splits are longer."""
    case = attention(f"{of},{last}", (last, 3), window=300, of=of)
    assert chosen(case, "step") == ("mma", True)
    result = run_case(backend(), case)
    assert result.status == "passed", result.why


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    """Uniform in [-1, 1)."""
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def rows(case: BoundCase, kind: str, tokens: int) -> list[bytes]:
    """The first tokens' results."""
    out = np.frombuffer(Op(case, kind=kind).run()["o"], np.float32)
    return [row.tobytes() for row in out.reshape(case.inputs[0].shape[0], -1)[:tokens]]


def test_a_prompt_has_the_same_bits_in_any_pass() -> None:
    """Whole, in chunks, and beside others."""
    q, k, v = drawn(150, 6, 64), drawn(HELD * 64, 2, 64, seed=1), drawn(HELD * 64, 2, 64, seed=2)
    pools = {"k": fixed(k, "f16"), "v": fixed(v, "f16")}

    def run(*seqs: tuple[int, int], q: np.ndarray, tokens: int) -> list[bytes]:
        given = pools | {"q": fixed(q), "block_table": fixed([[0, 3, 1, 4, 2]] * len(seqs), "i32")}
        return rows(attention("", *seqs, heads=(2, 3), given=given), "prefill", tokens)

    whole = run((0, 150), q=q, tokens=150)
    assert run((0, 64), q=q[:64], tokens=64) == whole[:64]
    assert run((64, 86), q=q[64:], tokens=86) == whole[64:]
    beside = np.concatenate([q[64:], drawn(40, 6, 64, seed=3)])
    assert run((64, 86), (5, 40), q=beside, tokens=86) == whole[64:]


@pytest.mark.parametrize(("kind", "tokens"), [("step", 4), ("prefill", 64)])
@pytest.mark.parametrize("odd", [np.inf, np.nan])
def test_infinite_values_reach_who_sees_them(kind: str, tokens: int, odd: float) -> None:
    """The value of the last token but one: others have the bits that they have without it."""
    v = drawn(HELD * 64, 1, 64, seed=2)
    q, last = fixed(drawn(tokens, 2, 64)), 40 + tokens - 2

    def run(v: np.ndarray) -> list[bytes]:
        table = fixed([[0, 1, 2, 3]], "i32")
        given = {"q": q, "v": fixed(v, "f16"), "block_table": table}
        return rows(attention("infinite", (40, tokens), given=given), kind, tokens)

    plain = run(v)
    v[last, 0, 3] = odd
    with_odd = run(v)
    assert with_odd[:-2] == plain[:-2]
    for row in with_odd[-2:]:
        values = np.frombuffer(row, np.float32).reshape(2, 64)
        assert not np.isfinite(values[:, 3]).any()
        assert np.isfinite(np.delete(values, 3, 1)).all()
