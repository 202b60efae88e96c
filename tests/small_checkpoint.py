"""A small checkpoint as Hugging Face has them: a Llama of two layers, written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors_bytes import write_safetensors

N_VOCAB, N_EMBD, N_FF = 264, 64, 96


def config(**more: Any) -> dict[str, Any]:
    """A Llama of two layers."""
    found: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": N_VOCAB,
        "hidden_size": N_EMBD,
        "intermediate_size": N_FF,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }
    return {key: value for key, value in {**found, **more}.items() if value is not ABSENT}


ABSENT = ...


def tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {
        "self_attn.q_proj": (64, 64),
        "self_attn.k_proj": (32, 64),
        "self_attn.v_proj": (32, 64),
        "self_attn.o_proj": (64, 64),
        "mlp.gate_proj": (N_FF, 64),
        "mlp.up_proj": (N_FF, 64),
        "mlp.down_proj": (64, N_FF),
        "input_layernorm": (64,),
        "post_attention_layernorm": (64,),
    }
    names = {f"model.layers.{i}.{part}": s for i in range(2) for part, s in shapes.items()}
    names |= {"model.embed_tokens": (N_VOCAB, 64), "model.norm": (64,), "lm_head": (N_VOCAB, 64)}
    return {f"{n}.weight": rng.standard_normal(s).astype(np.float32) for n, s in names.items()}


def checkpoint(
    folder: Path,
    held: dict[str, np.ndarray] | None = None,
    kind: str = "F32",
    **more: Any,
) -> Path:
    """A folder with a configuration and two files of weights."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(**more)))
    held = tensors() if held is None else held
    names = list(held)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in parts.items():
        write_safetensors(folder / file, {name: held[name] for name in part}, kind)
    placed = {name: file for file, part in parts.items() for name in part}
    index = json.dumps({"weight_map": placed})
    (folder / "model.safetensors.index.json").write_text(index)
    return folder
