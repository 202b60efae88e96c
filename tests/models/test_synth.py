"""Model files with random weights: shapes, mixes, seeds, routers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import riverrun
from demo import DEMO
from riverrun.backends.cpu_blocks import BlockRecoder
from riverrun.graph.codec import decode
from riverrun.graph.errors import ModelError, RequestError
from riverrun.models.architecture import ARCHITECTURES
from riverrun.models.gguf import open_gguf
from riverrun.models.load import load_file
from riverrun.models.quantizing import find_mix, plan
from riverrun.models.synth import SHAPES, find_shape, synthesize
from riverrun.models.synth.values import router_rows

TINY = [name for name in SHAPES if name.endswith("tiny") and name != "granite-4.0-h-tiny"]
PARAMETERS = {  # in millions, as the models are known for; published counts round them
    "qwen35-0.8b": 752,
    "qwen35-4b": 4206,
    "qwen35-27b": 26896,
    "qwen35moe-35b-a3b": 34661,
    "qwen3-0.6b": 596,
    "qwen3-8b": 8191,
    "llama-3-8b": 8030,
    "llama-3.2-1b": 1236,
    "qwen3moe-30b-a3b": 30532,
    "gpt-oss-20b": 20915,
    "qwen2.5-0.5b": 494,
    "qwen2.5-7b": 7615,
    "qwen3next-80b-a3b": 79674,
    "smollm3-3b": 3075,
    "phi3-mini-4k": 3821,
    "glm-4.5-air": 106852,
    "granite-4.0-h-micro": 3191,
    "granite-4.0-h-tiny": 6939,
    "kimi-linear-48b-a3b": 49123,
    "lfm2-1.2b": 1170,
    "gemma2-2b": 2614,
    "gemma3-270m": 268,
    "gemma3-27b": 27009,
}


def made(tmp_path: Path, name: str, mix: str = "Q4_K_M", **how: object) -> Path:
    out = tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}.gguf"
    if find_shape(name).arch not in ARCHITECTURES:
        with pytest.raises(ModelError, match="is not supported"):
            synthesize(name, find_mix(mix), out, BlockRecoder(1))
        pytest.skip(f"architecture {find_shape(name).arch} is not there")
    synthesize(name, find_mix(mix), out, BlockRecoder(1), **how)  # type: ignore[arg-type]
    return out


@pytest.fixture(autouse=True)
def _architectures() -> None:
    load_file(DEMO)  # finds all of them


@pytest.mark.parametrize("name", TINY)
def test_a_tiny_model_gives_different_tokens(tmp_path: Path, name: str) -> None:
    model = riverrun.load(made(tmp_path, name), "cpu", 1)
    session = model.session()
    tokens = [5, 77, 1500, 3000, 9]
    logits = np.stack([session.evaluate([(0, [t])]).logits[-1].copy() for t in tokens])
    assert np.isfinite(logits).all()
    assert 0.1 < logits.std() < 3
    assert len(set(logits.argmax(axis=1))) > 1


def test_types_are_those_that_quantising_would_give(tmp_path: Path) -> None:
    plain, mixed = made(tmp_path, "tiny", "BF16"), made(tmp_path, "tiny", "Q4_K_M")
    want = {s.tensor.name: s.to for s in plan(open_gguf(plain), find_mix("Q4_K_M"))}
    assert {n: t.dtype for n, t in open_gguf(mixed).tensors.items()} == want


@pytest.mark.parametrize("mix", ["F32", "Q8_0", "Q2_K", "IQ4_XS", "MXFP4_MOE"])
def test_sizes_of_values(tmp_path: Path, mix: str) -> None:
    tensors = open_gguf(made(tmp_path, "qwen35moe-tiny", mix)).tensors
    for name in ("blk.3.attn_q.weight", "blk.1.ffn_down_exps.weight", "token_embd.weight"):
        t = tensors[name]
        std = decode(t.dtype, t.data, t.shape).std()
        want = 0.02 if name == "token_embd.weight" else t.shape[-1] ** -0.5
        assert 0.9 * want < std < 1.1 * want, name


def test_the_seed_decides(tmp_path: Path) -> None:
    first, again, other = (made(tmp_path, "tiny", seed=seed).read_bytes() for seed in (1, 1, 2))
    assert first == again != other


def test_a_vocabulary_and_a_block_for_drafts(tmp_path: Path) -> None:
    path = made(tmp_path, "tiny", vocab=DEMO, mtp=True)
    model = riverrun.load(path, "cpu", 1)
    assert model.tokenizer.n_vocab == riverrun.load(DEMO, "cpu", 1).tokenizer.n_vocab
    result = "".join(
        model.generate(
            "def f(", max_tokens=6, temperature=0, speculative=riverrun.Speculation(("mtp",))
        )
    )
    assert result == "".join(model.generate("def f(", max_tokens=6, temperature=0))
    assert open_gguf(path).get_u32("qwen35.nextn_predict_layers") == 1


def test_routers(tmp_path: Path) -> None:
    h = np.random.default_rng(3).standard_normal((4000, 256))
    share = {}
    for kind in ("even", "skewed"):
        w = router_rows((128, 256), kind, np.random.default_rng(4))
        top = np.argpartition(-(h @ w.T), 8, axis=1)[:, :8]
        counts = np.sort(np.bincount(top.reshape(-1), minlength=128))[::-1]
        share[kind] = counts[:16].sum() / counts.sum()
    assert share["even"] < 0.2 and share["skewed"] > 0.5
    paths = [made(tmp_path, "qwen35moe-tiny", router=kind) for kind in ("even", "skewed")]
    a, b = (open_gguf(p).tensors["blk.0.ffn_gate_inp.weight"] for p in paths)
    assert (a.data != b.data).any()


def test_refusals(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    for name, how, told in (
        ("qwen3-tiny", {"mtp": True}, "no block that predicts"),
        ("tiny", {"router": "odd"}, "expected one of even, skewed"),
        ("gpt-9", {}, "expected one of tiny"),
    ):
        with pytest.raises(RequestError, match=told):
            synthesize(name, find_mix("Q8_0"), out, BlockRecoder(1), **how)  # type: ignore[arg-type]
    assert not out.exists()


@pytest.mark.parametrize("name", PARAMETERS)
def test_shapes_have_as_many_parameters_as_the_models(name: str, tmp_path: Path) -> None:
    from riverrun.models.synth import write

    shape, mix = SHAPES[name], find_mix("Q4_K_M")
    fields, shape = write.metadata(name, shape, mix, False, None)
    wants, _ = write.tensors_of(fields, shape, mix)
    count = sum(int(np.prod(want.shape, dtype=np.int64)) for want in wants)
    assert round(count / 1e6) == PARAMETERS[name]
