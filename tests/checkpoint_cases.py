"""The tiny checkpoints that conversion is checked with: what each one's configuration says.

A row serves the architecture of its converter's family (models/convert/arch)."""

from __future__ import annotations

from typing import Any

N_VOCAB = 96
SIZES: dict[str, Any] = {
    "vocab_size": N_VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def rope(**more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4} | more}


def longrope(before: int) -> dict[str, Any]:
    """Phi's factors: eight for a head of 16."""
    long, short = [1.5 + 0.5 * i for i in range(8)], [1.0 + 0.1 * i for i in range(8)]
    kind = dict(rope_type="longrope", long_factor=long, short_factor=short)
    return rope(**kind, original_max_position_embeddings=before)


YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
LLAMA3["original_max_position_embeddings"] = 64
GEMMA: dict[str, Any] = dict(head_dim=32, query_pre_attn_scalar=32, sliding_window=8)
GEMMA |= {"tie_word_embeddings": True, "attn_logit_softcapping": 2.0}
GEMMA |= {"final_logit_softcapping": 3.0}
SLIDING = ["sliding_attention", "sliding_attention"]
FAR = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
GEMMA3 = GEMMA | {"attn_logit_softcapping": None, "final_logit_softcapping": None}
GEMMA3["rope_parameters"] = {
    "full_attention": FAR,
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
MROPE: dict[str, Any] = dict(partial_rotary_factor=0.5, mrope_section=[2, 1, 1])
MROPE["mrope_interleaved"] = True
DELTA: dict[str, Any] = dict(linear_conv_kernel_dim=4, linear_num_key_heads=2, head_dim=16)
DELTA |= dict(linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16)
DELTA |= {"num_hidden_layers": 4, "layer_types": [*["linear_attention"] * 3, "full_attention"]}
GLM: dict[str, Any] = dict(n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=32)
GLM |= dict(n_shared_experts=2, first_k_dense_replace=1, routed_scaling_factor=1.5)
GLM |= dict(head_dim=32, num_mtp_layers=0)
OSS: dict[str, Any] = dict(num_local_experts=6, num_experts_per_tok=2, sliding_window=8)
OSS |= dict(head_dim=32)
SHARED: dict[str, Any] = {"shared_expert_intermediate_size": 48}
MOE: dict[str, Any] = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32)
NEXT = {name: value for name, value in DELTA.items() if name != "head_dim"} | {"head_dim": 32}
NEXT |= {"norm_topk_prob": True}
LFM2: dict[str, Any] = dict(layer_types=["conv", "full_attention", "conv"], norm_eps=1e-5)
LFM2 |= dict(intermediate_size=130, block_multiple_of=32)
GRANITE: dict[str, Any] = dict(mamba_n_heads=8, mamba_d_head=16, mamba_d_state=16)
GRANITE |= dict(layer_types=["linear_attention", "full_attention", "linear_attention"])
GRANITE |= dict(embedding_multiplier=3.0, residual_multiplier=0.6, logits_scaling=1.5)
GRANITE |= dict(attention_multiplier=0.2, shared_intermediate_size=48, num_local_experts=0)
KIMI: dict[str, Any] = dict(kv_lora_rank=32, qk_rope_head_dim=8, qk_nope_head_dim=24, v_head_dim=16)
KIMI |= dict(linear_head_dim=16, linear_num_heads=4, num_key_value_heads=4, num_local_experts=6)
KIMI |= dict(num_experts_per_tok=2, moe_intermediate_size=32, rms_norm_eps=1e-6)
KIMI["layer_types"] = ["linear_attention", "full_attention", "linear_attention"]

# What a checkpoint's configuration says beside SIZES, under the name of its class.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("Qwen2", rope()),
    "qwen2,tied": ("Qwen2", rope() | {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", rope() | {"head_dim": 32}),
    "qwen3moe": ("Qwen3Moe", rope() | MOE | {"head_dim": 32, "norm_topk_prob": True}),
    "llama": ("Llama", rope()),
    "llama,biases": ("Llama", rope() | {"attention_bias": True}),
    "llama,llama3": ("Llama", rope(**LLAMA3)),
    "llama,linear": ("Llama", rope(rope_type="linear", factor=4.0)),
    "llama,yarn": ("Llama", rope(**YARN)),
    "llama,yarn,betas": ("Llama", rope(**YARN, beta_fast=16.0, beta_slow=2.0)),
    "llama,yarn,size": ("Llama", rope(**YARN, attention_factor=1.7)),
    "llama,yarn,mscale": ("Llama", rope(**YARN, mscale=0.7, mscale_all_dim=1.3)),
    "mistral": ("Mistral", rope() | {"sliding_window": 8, "head_dim": 32}),
    "mixtral": ("Mixtral", rope() | {"num_local_experts": 6, "num_experts_per_tok": 2}),
    "gemma2": ("Gemma2", rope() | GEMMA),
    "gemma2,scale": ("Gemma2", rope() | GEMMA | {"query_pre_attn_scalar": 48}),
    "gemma3": ("Gemma3Text", {**GEMMA3, "num_hidden_layers": 7}),
    "gemma3,pattern": ("Gemma3Text", {**GEMMA3, "layer_types": ["full_attention", *SLIDING]}),
    "phi3": ("Phi3", rope()),
    "phi3,window": ("Phi3", rope() | {"sliding_window": 8}),
    "phi3,short": ("Phi3", longrope(256)),
    "phi3,long": ("Phi3", longrope(16) | {"sliding_window": None}),
    "phi3,partial": ("Phi3", rope(partial_rotary_factor=0.5)),
    "qwen35": ("Qwen3_5Text", rope(**MROPE) | DELTA),
    "qwen35moe": ("Qwen3_5MoeText", rope(**MROPE) | DELTA | MOE | SHARED),
    "qwen3next": ("Qwen3Next", rope(partial_rotary_factor=0.5) | NEXT | MOE | SHARED),
    "kimi-linear": ("KimiLinear", KIMI),
    "lfm2": ("Lfm2", rope() | LFM2),
    "granitehybrid": ("GraniteMoeHybrid", rope() | GRANITE),
    "granitehybrid,experts": (
        "GraniteMoeHybrid",
        rope() | GRANITE | dict(num_local_experts=6, mamba_n_groups=2, tie_word_embeddings=True),
    ),
    "granitehybrid,rope": (
        "GraniteMoeHybrid",
        rope() | GRANITE | {"position_embedding_type": "rope"},
    ),
    "glm4moe": ("Glm4Moe", rope() | GLM),
    "glm4moe,norms": ("Glm4Moe", rope() | GLM | {"use_qk_norm": True, "attention_bias": True}),
    "gptoss": ("GptOss", rope() | OSS),
    "smollm3": ("SmolLM3", rope() | {"num_hidden_layers": 5}),
}
