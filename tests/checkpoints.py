"""Tiny checkpoints of transformers with random weights, saved as their authors publish them, and
what transformers computes from them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_cases import CASES, SIZES
from oracles import TRANSFORMERS

REASON = "needs transformers and torch: pip install 'riverrun[transformers]'"
transformers = pytest.importorskip("transformers", minversion=TRANSFORMERS, reason=REASON)
torch = pytest.importorskip("torch", reason=REASON)
safetensors = pytest.importorskip("safetensors.torch", reason=REASON)


def configuration(name: str) -> Any:
    kind, more = CASES[name]
    return getattr(transformers, f"{kind}Config")(**(SIZES | more))


@cache
def model(name: str) -> Any:
    """The model of a case, f32, with weights of a size that keeps activations near 1 and shows each
    of them in the logits."""
    config = configuration(name)
    config._attn_implementation = "eager"
    torch.manual_seed(sum(name.encode()))
    made = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    fill(made)
    return made


def fill(made: Any) -> None:
    """Random weights, and what counts for the choice of experts."""
    with torch.no_grad():
        choosing = [
            (n, b) for n, b in made.named_buffers() if n.endswith("e_score_correction_bias")
        ]
        for part, weight in [*made.named_parameters(), *choosing]:
            if weight.ndim == 1:
                weight.add_(torch.rand_like(weight) * 0.8 - 0.4)
            else:
                size = 1.0 if "embed_tokens" in part else 1.5 / weight.shape[-1] ** 0.5
                weight.normal_(0, size)


@cache
def mtp_block(name: str) -> Any:
    """The block that predicts further tokens, f32."""
    layers = pytest.importorskip("transformers.modeling_layers", reason=REASON)
    if not hasattr(layers, "MtpModel"):
        pytest.skip("needs a transformers that has blocks of multi-token prediction")
    torch.manual_seed(1)
    (made,) = layers.MtpModel(model(name), 1).float().eval().layers
    fill(made)
    return made


def save_with_mtp(name: str, folder: Path) -> Path:
    """The checkpoint with the block's tensors as GLM's have them: of a layer behind the others."""
    save(name, folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    behind = model(name).config.num_hidden_layers
    part = {
        f"model.layers.{behind}.{key}": weight.clone()
        for key, weight in (
            (key.removeprefix("mtp_block.").replace("post_norm.", "shared_head.norm."), weight)
            for key, weight in mtp_block(name).state_dict().items()
        )
    }
    safetensors.save_file(part, folder / "mtp.safetensors")
    index["weight_map"] |= dict.fromkeys(part, "mtp.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config = json.loads((folder / "config.json").read_text())
    config["num_nextn_predict_layers"] = 1
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def mtp_logits(name: str, tokens: tuple[int, ...], before: np.ndarray) -> np.ndarray:
    """Logits f32 [n, N_VOCAB] of the block for pairs of a token and the row [H] before it."""
    main, n = model(name), len(tokens)
    hidden = torch.full((n, n), -torch.inf).triu(1)[None, None]
    at = torch.arange(n)[None]
    with torch.no_grad():
        embedded = main.get_input_embeddings()(torch.tensor([tokens]))
        turned = main.get_decoder().rotary_emb(embedded, at)
        rows = torch.from_numpy(before)[None]
        out = mtp_block(name)(embedded, rows, turned, hidden, at, None)
        return main.lm_head(out)[0].numpy()


def save(name: str, folder: Path) -> Path:
    """The checkpoint's folder, several files of weights in it."""
    model(name).save_pretrained(folder, max_shard_size="60KB")
    return folder


@cache
def logits(name: str, tokens: tuple[int, ...]) -> np.ndarray:
    """Logits f32 [n, N_VOCAB] of every token."""
    with torch.no_grad():
        return model(name)(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
