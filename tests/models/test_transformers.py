"""Qwen3.5, dense and mixture of experts, against Hugging Face transformers over the same weights.

The weights go from a file's names and layouts to those of the published checkpoints, so that
every convention of the file is held against code that shares none with this package."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import riverrun as rr
from oracles import TRANSFORMERS, cases_of
from tiny_models import N_VOCAB, VARIANTS, TinyModel

REASON = "needs transformers and torch: pip install 'riverrun[transformers]'"
transformers = pytest.importorskip("transformers", minversion=TRANSFORMERS, reason=REASON)
torch = pytest.importorskip("torch", reason=REASON)

# The reference is what kernels are held against, op by op; here one of each kind tells enough.
ON_REFERENCE = ("qwen35,v=3k", "qwen35moe")
RUNS = [("cpu", variant) for variant in cases_of(__file__)]
RUNS += [("reference", variant) for variant in ON_REFERENCE]
# Transformers fixes the eps of the delta net's norms of q and k at this, where a file has one eps
# for all norms; published files have this one too.
EPS = 1e-6
# Beyond one chunk of 64, in which transformers computes the delta rule.
N_TOKENS = 70
# Relative to the largest logit. Either side computes in f32 and may be off by 5e-5, which is what
# the cpu is allowed against float64. Heads in the wrong order, norms off by their 1, another
# eps of the norms or a third expert move logits by more than half of the largest.
LIMIT = 1e-4

TRUNK = {"token_embd": "embed_tokens", "output_norm": "norm"}
BLOCK = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
BARE = {
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ffn_gate_up_exps.weight": "mlp.experts.gate_up_proj",
    "ffn_down_exps.weight": "mlp.experts.down_proj",
}
NAMES = {f"{name}.weight": f"{other}.weight" for name, other in BLOCK.items()} | BARE


def tiny(variant: str) -> TinyModel:
    model = VARIANTS[variant]()
    model.keys["attention.layer_norm_rms_epsilon"] = EPS
    return model


def checkpoint_name(name: str) -> str:
    """blk.0.attn_q.weight is model.layers.0.self_attn.q_proj.weight."""
    if name == "output.weight":
        return "lm_head.weight"
    if name.startswith("blk."):
        _, block, rest = name.split(".", 2)
        return f"model.layers.{block}.{NAMES[rest]}"
    return f"model.{TRUNK[name.removesuffix('.weight')]}.weight"


def grouped(array: np.ndarray, k_heads: int, v_heads: int, axis: int = 0) -> np.ndarray:
    """The axis with its value heads sorted by their key head.

    A file has value head t under key head t modulo k_heads; a checkpoint has it under
    t // (v_heads / k_heads)."""
    split = (v_heads // k_heads, k_heads, array.shape[axis] // v_heads)
    shape = array.shape[:axis] + split + array.shape[axis + 1 :]
    return array.reshape(shape).swapaxes(axis, axis + 1).reshape(array.shape)


def checkpoint_layout(name: str, x: np.ndarray, keys: dict[str, Any]) -> np.ndarray:
    """A tensor of a file as the checkpoint has it."""
    k_heads, v_heads = keys["ssm.group_count"], keys["ssm.time_step_rank"]
    part = name.split(".")[2] if name.startswith("blk.") else name.split(".")[0]
    if part.endswith("_norm") and part != "ssm_norm":
        return x - 1
    if part == "ffn_gate_inp_shexp":
        return x[None]
    if part == "ssm_a":
        x = np.log(-x)
    if part in ("attn_gate", "ssm_alpha", "ssm_beta", "ssm_dt", "ssm_a"):
        return grouped(x, k_heads, v_heads)
    if part == "ssm_out":
        return grouped(x, k_heads, v_heads, axis=1)
    if part in ("attn_qkv", "ssm_conv1d"):
        start = 2 * k_heads * keys["ssm.state_size"]
        x = np.concatenate([x[:start], grouped(x[start:], k_heads, v_heads)])
    return x[:, None] if part == "ssm_conv1d" else x


def checkpoint(model: TinyModel) -> dict[str, Any]:
    """The state dict of the transformers model with the file's weights, f32."""
    file = dict(model.tensors)
    for name in [n for n in file if n.endswith("ffn_gate_exps.weight")]:
        both = [file.pop(name), file.pop(name.replace("gate", "up"))]
        file[name.replace("gate", "gate_up")] = np.concatenate(both, axis=1)
    file.setdefault("output.weight", file["token_embd.weight"])
    return {
        checkpoint_name(name): torch.from_numpy(
            np.ascontiguousarray(checkpoint_layout(name, x, model.keys), np.float32)
        )
        for name, x in file.items()
    }


def config(model: TinyModel) -> Any:
    """The transformers configuration that says what the file's keys and tensors say."""
    keys, layers = model.keys, range(model.keys["block_count"])
    dim, kinds = keys["attention.key_length"], ("full_attention", "linear_attention")
    arguments = {
        "vocab_size": N_VOCAB,
        "hidden_size": keys["embedding_length"],
        "num_hidden_layers": len(layers),
        "layer_types": [kinds[f"blk.{i}.ssm_a" in model.tensors] for i in layers],
        "num_attention_heads": keys["attention.head_count"],
        "num_key_value_heads": keys["attention.head_count_kv"],
        "head_dim": dim,
        "rms_norm_eps": keys["attention.layer_norm_rms_epsilon"],
        "tie_word_embeddings": "output.weight" not in model.tensors,
        "linear_conv_kernel_dim": keys["ssm.conv_kernel"],
        "linear_key_head_dim": keys["ssm.state_size"],
        "linear_value_head_dim": keys["ssm.state_size"],
        "linear_num_key_heads": keys["ssm.group_count"],
        "linear_num_value_heads": keys["ssm.time_step_rank"],
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": keys["rope.freq_base"],
            "partial_rotary_factor": keys["rope.dimension_count"] / dim,
            "mrope_section": keys["rope.dimension_sections"][:3],
            "mrope_interleaved": True,
        },
    }
    if model.arch == "qwen35":
        arguments["intermediate_size"] = keys["feed_forward_length"]
        return transformers.Qwen3_5TextConfig(**arguments)
    arguments["num_experts"] = keys["expert_count"]
    arguments["num_experts_per_tok"] = keys["expert_used_count"]
    arguments["moe_intermediate_size"] = keys["expert_feed_forward_length"]
    arguments["shared_expert_intermediate_size"] = keys["expert_shared_feed_forward_length"]
    return transformers.Qwen3_5MoeTextConfig(**arguments)


def prompt() -> list[int]:
    return np.random.default_rng(0).integers(0, N_VOCAB, N_TOKENS).tolist()


@cache
def peer_of(variant: str) -> Any:
    """The transformers model with the file's weights."""
    model = tiny(variant)
    name = {"qwen35": "Qwen3_5ForCausalLM", "qwen35moe": "Qwen3_5MoeForCausalLM"}[model.arch]
    peer = getattr(transformers, name)(config(model)).float().eval()
    peer.load_state_dict(checkpoint(model), strict=True)
    return peer


@cache
def expected(variant: str) -> np.ndarray:
    """Logits of transformers for every token of the prompt, (N_TOKENS, N_VOCAB)."""
    with torch.no_grad():
        return peer_of(variant)(torch.tensor([prompt()]), use_cache=False).logits[0].numpy()


def hidden(variant: str, ids: list[int]) -> np.ndarray:
    """What transformers calls the last hidden state, behind the final norm, (tokens, E)."""
    with torch.no_grad():
        found = peer_of(variant).model(torch.tensor([ids]), use_cache=False)
    return found.last_hidden_state[0].numpy()


@pytest.mark.parametrize(("device", "variant"), RUNS)
def test_logits(tmp_path: Path, device: str, variant: str) -> None:
    path = tiny(variant).write(tmp_path / "model.gguf")
    session = rr.load(path, device).session(N_TOKENS, cache_type_k="f32", cache_type_v="f32")
    got, want = session.evaluate([(0, prompt())], want="all").logits, expected(variant)
    assert got.shape == want.shape == (N_TOKENS, N_VOCAB)
    assert np.abs(got - want).max() <= LIMIT * np.abs(want).max()


@pytest.mark.parametrize("variant", ["qwen35", "qwen35moe"])
def test_embeddings(tmp_path: Path, variant: str) -> None:
    """Of texts of several lengths at once, one of them beyond a chunk."""
    model = rr.load(tiny(variant).write(tmp_path / "model.gguf"), "cpu")
    texts = [prompt(), prompt()[:5], prompt()[30:43]]
    rows = [hidden(variant, ids) for ids in texts]
    options = {"normalize": False, "cache_type_k": "f32", "cache_type_v": "f32"}
    for got, want in zip(model.embed(texts, pooling="none", **options), rows, strict=True):
        assert np.abs(got - want).max() <= LIMIT * np.abs(want).max()
    mean = np.stack([row.mean(0) for row in rows])
    got = model.embed(texts, pooling="mean", **options)
    assert np.abs(got - mean).max() <= LIMIT * np.abs(mean).max()
