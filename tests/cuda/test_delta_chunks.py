"""The delta net of prompts in chunks of 64 tokens: what its rows and states do not depend on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_rig import EMULATED, SHARED, backend, needs_cuda
from riverrun.backends.cuda import CudaBackend
from riverrun.backends.harness import build, outline, run_case
from riverrun.graph.case import BoundCase, Case, bind_case, fixed
from riverrun.ops.gated_delta_net import GatedDeltaNet

pytestmark = needs_cuda
KEY_HEADS, HEADS, SIZE = 1, 3, 64
Operands = dict[str, np.ndarray]


def operands(n: int, seed: int) -> Operands:
    """Of n tokens: keys of norm 1, decays from none to all."""
    rng = np.random.default_rng(seed)
    keys = rng.standard_normal((2, n, KEY_HEADS, SIZE))
    q, k = (keys / np.linalg.norm(keys, axis=-1, keepdims=True)).astype(np.float32)
    v = rng.standard_normal((n, HEADS, SIZE)).astype(np.float32)
    g = -(rng.uniform(0, 1, (n, HEADS)).astype(np.float32) ** 8) * 20
    return {"q": q, "k": k, "v": v, "g": g, "beta": rng.uniform(0, 1, g.shape).astype(np.float32)}


def case_of(parts: list[Operands], state: np.ndarray, pad: int = 0) -> BoundCase:
    """A pass of sequences, sequence i on row i of state, with rows of padding."""
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if pad:
        ends = {name: np.zeros((pad, *a.shape[1:]), a.dtype) for name, a in arrays.items()}
        arrays = {name: np.concatenate([a, ends[name]]) for name, a in arrays.items()}
    offsets = np.cumsum([0, *(len(part["q"]) for part in parts)])
    inputs: dict[str, Any] = {name: fixed(a, "f32") for name, a in arrays.items()}
    inputs["seq_offsets"] = fixed(offsets, "i32")
    inputs["state_rows"] = fixed(np.arange(len(parts)), "i32")
    return bind_case(GatedDeltaNet, Case("", heads="grouped", state=fixed(state, "f32"), **inputs))


def run(parts: list[Operands], state: np.ndarray, pad: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Outputs and states of a prompt's pass."""
    case = case_of(parts, state, pad)
    choice = backend().choose(outline(case))
    assert choice.kernel is not None and choice.kernel.isa == "wgmma", choice.why
    built = build(case)
    plan = backend().compile(built.graph, "prefill")
    pools = plan.pools()
    for name, tensor in built.states.items():
        pools.load(name, tensor.raw)
    bound = plan.bind(plan.own_weights(), pools)
    for name, array in built.inputs.items():
        bound.inputs[name][...] = array
    bound.run()
    (states,) = (pools.raw(name).view(np.float32).reshape(state.shape) for name in pools.specs)
    return next(iter(bound.outputs.values())).copy(), states.copy()


def fresh(n: int) -> np.ndarray:
    """States of n sequences."""
    rng = np.random.default_rng(n)
    return rng.standard_normal((n, HEADS * SIZE * SIZE)).astype(np.float32)


def test_company() -> None:
    """A sequence has the bits that it has alone, a short one too."""
    parts, states = [operands(n, n) for n in (130, 1, 64, 75)], fresh(4)
    together, after = run(parts, states, pad=6)
    at = 0
    for i, part in enumerate(parts):
        n = len(part["q"])
        alone, own = run([part], states[i : i + 1], pad=max(0, 64 - n))
        np.testing.assert_array_equal(together[at : at + n], alone[:n])
        np.testing.assert_array_equal(after[i], own[0])
        at += n
    assert not together[at:].any()


@pytest.mark.parametrize("cut", (64, 128, 192))
def test_cuts(cut: int) -> None:
    """A prompt gives the same bits in two passes, wherever a chunk ends."""
    whole, state = operands(200, 3), fresh(1)
    first, second = (
        {name: a[part] for name, a in whole.items()} for part in (slice(cut), slice(cut, None))
    )
    want, last = run([whole], state)
    head, between = run([first], state)
    tail, end = run([second], between, pad=64)
    np.testing.assert_array_equal(np.concatenate([head, tail[: 200 - cut]]), want)
    np.testing.assert_array_equal(end, last)


@pytest.mark.parametrize("n", (64, 65, 100, 127))
def test_ends(n: int) -> None:
    """Tokens have the bits that they have when more follow."""
    whole, state = operands(150, 5), fresh(1)
    want, _ = run([whole], state)
    got, _ = run([{name: a[:n] for name, a in whole.items()}], state)
    np.testing.assert_array_equal(got, want[:n])


@pytest.mark.parametrize("scale", (1e-12, 1e12))
def test_any_magnitude(scale: float) -> None:
    """Values and states of any size, as nothing is scaled."""
    part, state = operands(130, 7), fresh(1)
    part["v"] *= np.float32(scale)
    result = run_case(backend(), case_of([part], state * np.float32(scale)), kind="prefill")
    assert result.status == "passed", result.why
    assert max(result.nmse.values()) < 1e-9


@pytest.mark.skipif(not EMULATED, reason="a card's shared memory cannot be set")
def test_other_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cards whose blocks have less shared memory take the chunks that warps multiply."""
    monkeypatch.setenv(SHARED, str(163 << 10))
    on, case = CudaBackend(), case_of([operands(150, 9)], fresh(1))
    choice = on.choose(outline(case))
    assert choice.kernel is not None and choice.kernel.isa == "chunked", choice.why
    result = run_case(on, case, kind="prefill")
    assert result.status == "passed", result.why
