"""The multi-token-prediction block: golden values, dense float64 passes, the reduced head."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import riverrun as rr
from demo import PROMPTS, demo
from numpy_models import hidden_rows
from numpy_models import mtp as oracle
from paths import DATA, DEMO, shared
from riverrun.graph import HostTensor, TensorSpec
from riverrun.graph.dtype import dtype
from riverrun.graph.errors import GraphError, ModelError, RequestError
from riverrun.models.load import _first_rows as first_rows
from riverrun.models.load import load_file
from riverrun.models.step import DRAFT_HEAD, Capacity, StepShape
from tiny_models import N_EMBD, N_VOCAB, TinyModel, llama, qwen3next, qwen35, qwen35moe

ARRAYS = np.load(DATA / "golden.npz")
LIMITS = {"reference": 2e-3, "cpu": 0.1}
EXACT = {"reference": 1e-5, "cpu": 5e-5}
N = 24


def opened(m: rr.Model, head: bool = False) -> rr.Session:
    return m.session(512, cache_type_k="f32", cache_type_v="f32", program="mtp", draft_head=head)


def run(s: rr.Session, tokens: list[int], before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logits and own hidden rows of pairs."""
    extra = {"hidden_in": [np.asarray(before, np.float32)]}
    found = s.evaluate([(0, tokens)], want="all", hidden=True, extra=extra)
    assert found.hidden is not None
    return found.logits.copy(), found.hidden.copy()


def trunk_rows(m: rr.Model, tokens: list[int]) -> np.ndarray:
    s = m.session(512, cache_type_k="f32", cache_type_v="f32")
    found = s.evaluate([(0, tokens)], want="all", hidden=True)
    assert found.hidden is not None
    return found.hidden.copy()


def shifted(rows: np.ndarray) -> np.ndarray:
    """Each token gets the row of the one before it, the first one zeros."""
    return np.concatenate([np.zeros_like(rows[:1]), rows[:-1]])


# The longest prompt takes the reference too long.
GOLDEN = [(d, n) for d in LIMITS for n in PROMPTS if (d, n) != ("reference", "p200")]


@pytest.mark.parametrize("device,name", GOLDEN)
def test_golden(device: str, name: str) -> None:
    m, p, limit = demo(device, "bf16"), PROMPTS[name], LIMITS[device]
    rows = trunk_rows(m, p["ids"])
    s = opened(m)
    run(s, p["ids"], shifted(rows))
    logits, hidden = run(s, p["greedy"][:1], rows[-1:])
    assert np.abs(logits[0] - ARRAYS[f"{name}.mtp_logits"]).max() < limit
    assert np.abs(hidden[0] - ARRAYS[f"{name}.mtp_hidden"]).max() < limit
    chained, _ = run(s, [int(ARRAYS[f"{name}.mtp_logits"].argmax())], hidden)
    assert np.abs(chained[0] - ARRAYS[f"{name}.mtp2_logits"]).max() < limit
    alone, _ = run(opened(m), p["greedy"][:1], rows[-1:])
    assert np.abs(alone[0] - ARRAYS[f"{name}.mtp_logits_nohist"]).max() < limit


def with_parts(model: TinyModel, parts: str) -> TinyModel:
    """A model whose block has tensors of its own where parts says so."""
    rng, b = np.random.default_rng(9), "blk.4.nextn."
    if "norm" not in parts:
        del model.tensors[b + "shared_head_norm.weight"]
    for part, name in (("embed", "embed_tokens"), ("head", "shared_head_head")):
        if part in parts:
            own = rng.standard_normal((N_VOCAB, N_EMBD)) / (8 if part == "head" else 1)
            model.tensors[f"{b}{name}.weight"] = own.astype(np.float32)
    return model


@cache
def tiny(arch: str, parts: str, tied: bool) -> TinyModel:
    make = {"qwen35": partial(qwen35, tied=tied), "qwen35moe": qwen35moe, "qwen3next": qwen3next}
    return with_parts(make[arch](mtp=1), parts)


def pairs() -> tuple[list[int], np.ndarray]:
    """Random tokens, the third of them one of the tiny embeddings, and random rows."""
    rng = np.random.default_rng(3)
    tokens = [int(t) for t in rng.integers(0, N_VOCAB, N)]
    tokens[2] = 5
    return tokens, rng.standard_normal((N, N_EMBD))


def near(got: np.ndarray, want: np.ndarray, limit: float) -> None:
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= limit * np.abs(want).max()


@pytest.mark.parametrize("parts", ["", "norm", "embed", "head", "embed,head,norm"])
@pytest.mark.parametrize("arch", ["qwen35", "qwen35 tied", "qwen35moe"])
@pytest.mark.parametrize("device", EXACT)
def test_dense_pass(tmp_path: Path, device: str, arch: str, parts: str) -> None:
    source = tiny(arch.split()[0], parts, arch.endswith("tied"))
    m = rr.load(source.write(tmp_path / "model.gguf"), device=device)
    tokens, before = pairs()
    logits, hidden = run(opened(m), tokens, before)
    want_logits, want_hidden = oracle(source, tokens, before.astype(np.float32))
    near(logits, want_logits, EXACT[device])
    near(hidden, want_hidden, EXACT[device])


@pytest.mark.parametrize("arch", ["qwen35", "qwen35moe", "qwen3next"])
@pytest.mark.parametrize("device", EXACT)
def test_after_the_trunk_in_pieces(tmp_path: Path, device: str, arch: str) -> None:
    """Fed with the trunk's own rows, in passes of 1, 5 and the rest, as in one pass."""
    source = tiny(arch, "norm", False)
    m = rr.load(source.write(tmp_path / "model.gguf"), device=device)
    tokens, _ = pairs()
    near(trunk_rows(m, tokens), hidden_rows(source, tokens), EXACT[device])
    before = shifted(trunk_rows(m, tokens))
    want, _ = oracle(source, tokens, before)
    s, got = opened(m), []
    for a, b in ((0, 1), (1, 6), (6, N)):
        got.append(run(s, tokens[a:b], before[a:b])[0])
    near(np.concatenate(got), want, EXACT[device])
    whole, _ = run(opened(m), tokens, before)
    np.testing.assert_array_equal(np.concatenate(got), whole)


def test_models_without_a_block(tmp_path: Path) -> None:
    cases = ((qwen35(), "nextn_predict_layers is 0"), (llama(), "'llama' has no multi-token"))
    for source, words in cases:
        m = rr.load(source.write(tmp_path / f"{source.arch}.gguf"), device="cpu")
        with pytest.raises(ModelError, match=f"{words}.*another drafter"):
            m.session(64, program="mtp")
        with pytest.raises(ModelError, match="another drafter"):
            m.generate([1, 2], 2, speculative="mtp")


def head_file(kind: str) -> Path:
    return DEMO if kind == "q8_0" else shared("models", f"riverrun-demo-{kind}.gguf")


@pytest.mark.parametrize("n", [1, 15, 17, 1000, 6143, 6144])
@pytest.mark.parametrize("kind", ["q8_0", "q4_k_m", "bf16"])
def test_reduced_head_is_the_first_columns(kind: str, n: int) -> None:
    """Bit for bit, in every size of pass; the head of q4_k_m is stored as q6_k."""
    full, part = demo("cpu", kind), rr.load(head_file(kind), device="cpu", draft_head=n)
    ids = PROMPTS["p65"]["ids"]
    before = shifted(trunk_rows(full, ids))
    want, rows = run(opened(full), ids, before)
    got, same = run(opened(part, head=True), ids, before)
    assert got.shape == (len(ids), n)
    np.testing.assert_array_equal(got, want[:, :n])
    np.testing.assert_array_equal(same, rows)
    alone, _ = run(opened(part, head=True), ids[:1], before[:1])
    np.testing.assert_array_equal(alone, want[:1, :n])


SCALES = {"q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,), "q4_0": (0,), "iq4_xs": (0,)}


@pytest.mark.parametrize("kind", SCALES)
def test_reduced_head_of_packed_rows(kind: str) -> None:
    """A head of the block's own, in types that keep several values in a byte."""
    source, name = load_file(DEMO), "blk.12.nextn.shared_head_head.weight"
    spec = TensorSpec((6144, 256), dtype(kind))
    raw = np.random.default_rng(2).integers(0, 256, spec.nbytes, np.uint8)
    blocks = raw.reshape(6144 * 256 // spec.dtype.block, -1)
    for at in SCALES[kind]:
        blocks[:, at : at + 2] = np.full(1, 1e-3, np.float16).view(np.uint8)
    weights = source.weights | {name: HostTensor(spec, raw)}
    before = np.random.default_rng(1).standard_normal((4, 256))
    want, _ = run(opened(rr.Model(replace(source, weights=weights), "cpu")), [3, 99, 0, 7], before)
    assert np.isfinite(want).all() and np.ptp(want, axis=1).min() > 0.1
    for n in (1, 33, 6144):
        head = first_rows("model.gguf", weights[name], n)
        m = rr.Model(replace(source, weights=weights | {DRAFT_HEAD: head}), "cpu")
        got, _ = run(opened(m, head=True), [3, 99, 0, 7], before)
        np.testing.assert_array_equal(got, want[:, :n])


@pytest.mark.parametrize("n", [-1, 6145, 10**9])
def test_bad_sizes(n: int) -> None:
    with pytest.raises(RequestError, match=f"draft_head should be 1 to 6144 tokens, got {n}"):
        rr.load(DEMO, device="cpu", draft_head=n)


def test_head_of_a_model_without_a_block(tmp_path: Path) -> None:
    """It is the first rows of the model's head, which nothing uses."""
    path = llama().write(tmp_path / "model.gguf")
    plain, reduced = load_file(path), load_file(path, 16)
    assert set(reduced.weights) - set(plain.weights) == {DRAFT_HEAD}
    a, b = (rr.load(path, device="cpu", draft_head=n) for n in (0, 16))
    np.testing.assert_array_equal(a.session(64).prefill([1, 2]), b.session(64).prefill([1, 2]))


def test_step_asks_for_a_head_that_is_not_there() -> None:
    m = demo()
    with pytest.raises(GraphError, match=DRAFT_HEAD):
        m.source.arch.mtp(
            StepShape(1, 1, 1, hidden=True, head=True), Capacity(1, 1, 1), m.source.specs
        )
