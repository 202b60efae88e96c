"""Checkpoints with recurrent layers, as transformers saves them, through the converter: logits, and
greedy text with drafts under every rollback strategy."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import riverrun as rr
from riverrun.models.convert import convert
from rollback_rig import STRATEGIES
from spec_rig import GREEDY, plain, require_equal, speculation, speculator

os.environ.setdefault("HF_HUB_OFFLINE", "1")
REASON = "needs transformers and torch: pip install 'riverrun[transformers]'"
transformers = pytest.importorskip("transformers", minversion="5.17", reason=REASON)
torch = pytest.importorskip("torch", reason=REASON)

N_VOCAB, N_TOKENS = 96, 70  # beyond one chunk of 64, in which transformers runs the delta rule
LIMIT = 1e-4  # of the largest logit; both sides compute in f32
COMMON: dict[str, Any] = {
    "vocab_size": N_VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def lfm2() -> Any:
    kinds = ["conv", "conv", "full_attention", "conv"]
    more = {"intermediate_size": 130, "block_multiple_of": 32, "conv_L_cache": 3}
    config = transformers.Lfm2Config(**COMMON, layer_types=kinds, norm_eps=1e-5, **more)
    return transformers.Lfm2ForCausalLM(config)


def qwen3next() -> Any:
    config = transformers.Qwen3NextConfig(
        **COMMON,
        intermediate_size=96,
        head_dim=32,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=64,
        rms_norm_eps=1e-6,
    )
    return transformers.Qwen3NextForCausalLM(config)


MODELS: dict[str, Callable[[], Any]] = {"lfm2": lfm2, "qwen3next": qwen3next}


def filled(model: Any) -> Any:
    """With weights that keep activations near 1, and experts' scores apart."""
    rng = np.random.default_rng(11)
    for name, x in model.named_parameters():
        if x.ndim >= 2:
            fan = x.shape[-1] * (1 if "conv" not in name or "proj" in name else 0.5)
            size = 3.0 if name.endswith(("mlp.gate.weight", "router.layer.weight")) else 1.3
            values = rng.standard_normal(tuple(x.shape)) * size / np.sqrt(fan)
        elif "A_log" in name or "dt_bias" in name:
            values = rng.uniform(-3.0, 0.5, tuple(x.shape))
        else:
            values = x.detach().numpy() + rng.uniform(-0.4, 0.4, tuple(x.shape))
        x.data = torch.from_numpy(np.asarray(values, np.float32))
    return model.float().eval()


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A transformers model and the file that became of its checkpoint."""
    torch.manual_seed(0)
    model, folder = filled(MODELS[request.param]()), tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    return model, convert(folder, folder / "out.gguf", "f32", tokenizer=False)


def prompt() -> list[int]:
    return [int(t) for t in np.random.default_rng(5).integers(3, N_VOCAB, N_TOKENS)]


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_logits(pair: tuple[Any, Path], device: str) -> None:
    peer, path = pair
    with torch.no_grad():
        want = peer(torch.tensor([prompt()]), use_cache=False).logits[0].numpy()
    session = rr.load(path, device).session(N_TOKENS, cache_type_k="f32", cache_type_v="f32")
    got = session.evaluate([(0, prompt())], want="all").logits
    assert got.shape == want.shape == (N_TOKENS, N_VOCAB)
    assert np.abs(want).max() > 1
    assert np.abs(got - want).max() <= LIMIT * np.abs(want).max()


@pytest.mark.parametrize("rollback", STRATEGIES)
def test_greedy_text_with_drafts(pair: tuple[Any, Path], rollback: str) -> None:
    """Text of few tokens repeats itself, so that n-gram drafters have something to say."""
    model, start = rr.load(pair[1], "cpu"), prompt()[:8]
    few: dict[str, Any] = {**GREEDY, "logit_bias": {t: 40.0 for t in range(3, 6)}}
    want = plain(model, start, 100, **few)
    drafted = kept = 0
    for kind in ("ngram-mod", "ngram-simple", "ngram-cache"):
        spec = speculator(model, speculation((kind,), 4), rollback=rollback)
        got = model.generate(start, 100, speculative=spec, ignore_eos=True, **few).result
        require_equal(got, want)
        drafted += got.timings["draft_n"]
        kept += got.timings["draft_n_accepted"]
    assert drafted > kept > 0
