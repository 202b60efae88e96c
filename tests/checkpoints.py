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
        biases = ("e_score_correction_bias", "expert_bias")
        choosing = [(name, b) for name, b in made.named_buffers() if name.endswith(biases)]
        for part, weight in [*made.named_parameters(), *choosing]:
            if weight.ndim == 1:
                weight.add_(torch.rand_like(weight) * 0.8 - 0.4)
            else:
                size = 1.0 if "embed_tokens" in part else 1.5 / weight.shape[-1] ** 0.5
                weight.normal_(0, size)


@cache
def mtp_block(name: str) -> Any:
    """The block that predicts further tokens, f32: its layer is like the last one."""
    layers = pytest.importorskip("transformers.modeling_layers", reason=REASON)
    if not hasattr(layers, "MtpLayer"):
        pytest.skip("needs a transformers that has blocks of multi-token prediction")
    torch.manual_seed(1)
    main = model(name)
    last, norm = main.model.layers[-1], main.model.norm
    made = layers.MtpLayer(main.config, type(last), type(norm), len(main.model.layers) - 1)
    made = made.float().eval()
    fill(made)
    return made


# What publishers call the block's parts: GLM those of a layer behind the others, which `{n}` stands
# for; Qwen beside one of layers of its own.
GLM_MTP = {"mtp_block": "model.layers.{n}", "post_norm": "model.layers.{n}.shared_head.norm"}
GLM_MTP |= {part: f"model.layers.{{n}}.{part}" for part in ("eh_proj", "enorm", "hnorm")}
QWEN_MTP = {"mtp_block": "mtp.layers.0", "post_norm": "mtp.norm", "eh_proj": "mtp.fc"}
QWEN_MTP |= {"enorm": "mtp.pre_fc_norm_embedding", "hnorm": "mtp.pre_fc_norm_hidden"}
WITH_MTP = {"glm4moe": GLM_MTP, "qwen35": QWEN_MTP, "qwen35moe": QWEN_MTP, "qwen3next": QWEN_MTP}


def save_with_mtp(name: str, folder: Path) -> Path:
    """The checkpoint with the block's tensors, which config.json does not count."""
    save(name, folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    apart = any(".experts.0." in key for key in index["weight_map"])
    part: dict[str, Any] = {}
    for key, weight in mtp_block(name).state_dict().items():
        own, rest = key.split(".", 1)
        placed = f"{WITH_MTP[name][own].format(n=len(model(name).model.layers))}.{rest}"
        part |= experts_apart(placed, weight) if apart else {placed: weight.clone()}
    safetensors.save_file(part, folder / "mtp.safetensors")
    index["weight_map"] |= dict.fromkeys(part, "mtp.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def experts_apart(name: str, weight: Any) -> dict[str, Any]:
    """A tensor of all experts as those of each, with gate and up apart; others as they are."""
    head, _, tail = name.rpartition(".experts.")
    if tail not in ("gate_up_proj", "down_proj"):
        return {name: weight.clone()}
    parts = tail.replace("gate_up_proj", "gate_proj up_proj").split()
    return {
        f"{head}.experts.{i}.{part}.weight": rows.clone()
        for i, expert in enumerate(weight)
        for part, rows in zip(parts, expert.chunk(len(parts)), strict=True)
    }


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
