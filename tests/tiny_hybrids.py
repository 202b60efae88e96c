"""Tiny model files of architectures with recurrent layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tiny_parts import N_EMBD, TinyModel, Weights, common_keys, dotted


def qwen35(
    v_heads: int = 2,
    tied: bool = False,
    mtp: int = 0,
    recurrent: list[bool] | None = None,
    sections: tuple[int, ...] = (2, 1, 1, 0),
    linear: list[bool] | None = None,
    arch: str = "qwen35",
    feed_forward: Callable[[Weights, int], None] = Weights.ffn,
    **more: Any,
) -> TinyModel:
    """Four trunk layers, the last with attention unless told; two key heads of 16.

    linear: which layers get delta-net tensors; recurrent: the same, and written as a key.
    feed_forward adds a block's feed-forward tensors."""
    w, dim, k_heads, n = Weights(5), 16, 2, 4
    w.ends(tied)
    linear = recurrent or linear or [True, True, True, False]
    for i in range(n + mtp):
        b = f"blk.{i}."
        w.norm(b + "attn_norm.weight", N_EMBD)
        w.norm(b + "post_attention_norm.weight", N_EMBD)
        feed_forward(w, i)
        if i < n and linear[i]:
            _delta_net(w, b, k_heads, v_heads, dim)
        else:
            w.attention(i, 4, 2, 32, qk_norm=True, gated=True)
        if i >= n:
            w.matrix(b + "nextn.eh_proj.weight", N_EMBD, 2 * N_EMBD)
            w.norm(b + "nextn.enorm.weight", N_EMBD)
            w.norm(b + "nextn.hnorm.weight", N_EMBD)
            w.norm(b + "nextn.shared_head_norm.weight", N_EMBD)
    keys = common_keys(n + mtp, 4, 2, attention__key_length=32, attention__value_length=32)
    keys |= {"rope.dimension_count": 8, "rope.dimension_sections": list(sections)}
    keys |= {"rope.freq_base": 1e7, "ssm.conv_kernel": 4, "ssm.state_size": dim}
    keys |= {"ssm.group_count": k_heads, "ssm.time_step_rank": v_heads}
    keys |= {"ssm.inner_size": dim * v_heads}
    if mtp:
        keys["nextn_predict_layers"] = mtp
    if recurrent:
        keys["attention.recurrent_layers"] = recurrent
    return TinyModel(arch, keys | dotted(more), w)


def qwen35moe(
    n_used: int = 2, fused: bool = False, mtp: int = 0, v_heads: int = 2, **more: Any
) -> TinyModel:
    """qwen35 with six experts of width 32 in every block, and a shared one of width 96."""
    keys: dict[str, Any] = {"expert_count": 6, "expert_used_count": n_used}
    keys |= {"expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 96}

    def experts(w: Weights, i: int) -> None:
        w.experts(i, 6, 32, 96, fused)

    return qwen35(v_heads, mtp=mtp, arch="qwen35moe", feed_forward=experts, **(keys | more))


def qwen3next(v_heads: int = 2, whole: bool = False, mtp: int = 0) -> TinyModel:
    """qwen35moe with two key heads' projections packed as the published ones. whole: in one."""
    model = qwen35moe(v_heads=v_heads, mtp=mtp)
    del model.keys["rope.dimension_sections"]
    model.arch, w = "qwen3next", model.tensors
    for b in [name.removesuffix("ssm_a") for name in w if name.endswith("ssm_a")]:
        parts = [w.pop(f"{b}ssm_{name}.weight") for name in ("beta", "alpha")]
        w[b + "ssm_ba.weight"] = np.concatenate(parts)
        if whole:
            parts = [w.pop(f"{b}attn_{name}.weight") for name in ("qkv", "gate")]
            w[b + "ssm_in.weight"] = np.concatenate(parts)
    return model


def lfm2(
    width: int = 3,
    attends: Sequence[int] = (2,),
    tied: bool = True,
    feed_forward: Callable[[Weights, int], None] = Weights.ffn,
    **more: Any,
) -> TinyModel:
    """Four layers; those named have four heads of 16 over two, the others convolve."""
    w, layers = Weights(7), 4
    w.ends(tied, norm="token_embd_norm")
    for i in range(layers):
        b = f"blk.{i}."
        w.norm(b + "attn_norm.weight", N_EMBD)
        w.norm(b + "ffn_norm.weight", N_EMBD)
        feed_forward(w, i)
        if i in attends:
            w.attention(i, 4, 2, 16, qk_norm=True)
            continue
        w.matrix(b + "shortconv.in_proj.weight", 3 * N_EMBD, N_EMBD, 1.5)
        w.matrix(b + "shortconv.conv.weight", N_EMBD, width, 1.5)
        w.matrix(b + "shortconv.out_proj.weight", N_EMBD, N_EMBD)
    kv = [2 if i in attends else 0 for i in range(layers)]
    keys = common_keys(layers, 4, kv, shortconv__l_cache=width, rope__freq_base=1e6)
    return TinyModel("lfm2", keys | dotted(more), w)


def lfm2moe() -> TinyModel:
    """lfm2 with six experts of width 32 behind the first two layers."""

    def experts(w: Weights, i: int) -> None:
        if i < 2:
            w.ffn(i)
            return
        w.experts(i, 6, 32, 0, fused=False)
        w.vector(f"blk.{i}.exp_probs_b.bias", 6, -0.3, 0.3)

    model = lfm2(feed_forward=experts)
    model.arch = "lfm2moe"
    model.keys |= {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 32}
    model.keys |= {"leading_dense_block_count": 2, "expert_gating_func": 2}
    return model


def _delta_net(w: Weights, b: str, k_heads: int, v_heads: int, dim: int) -> None:
    values, channels = v_heads * dim, (2 * k_heads + v_heads) * dim
    w.matrix(b + "attn_qkv.weight", channels, N_EMBD, 1.5)
    w.matrix(b + "attn_gate.weight", values, N_EMBD, 1.5)
    w.matrix(b + "ssm_conv1d.weight", channels, 4, 1.5)
    w.matrix(b + "ssm_alpha.weight", v_heads, N_EMBD)
    w.matrix(b + "ssm_beta.weight", v_heads, N_EMBD)
    w.vector(b + "ssm_dt.bias", v_heads, -2.0, 1.0)
    w.vector(b + "ssm_a", v_heads, -0.5, -0.02)
    w.norm(b + "ssm_norm.weight", dim)
    w.matrix(b + "ssm_out.weight", N_EMBD, values)


SCALES: dict[str, Any] = {"embedding_scale": 3.0, "residual_scale": 0.6, "logit_scale": 1.5}


def granitehybrid(
    groups: int = 1, experts: int = 0, attends: Sequence[int] = (2,), **more: Any
) -> TinyModel:
    """Four layers; those named have four heads of 16 over two, the others scan, in four heads of 24
    with states of 16."""
    w, layers, heads, dim, size = Weights(8), 4, 4, 24, 16
    inner, channels = heads * dim, heads * dim + 2 * groups * size
    w.ends(tied=True)
    for i in range(layers):
        b = f"blk.{i}."
        w.norm(b + "attn_norm.weight", N_EMBD)
        w.norm(b + "ffn_norm.weight", N_EMBD)
        if experts:
            w.experts(i, experts, 32, 96, fused=False, shared_gate=False)
        else:
            w.ffn(i)
        if i in attends:
            w.attention(i, 4, 2, 16)
            continue
        w.matrix(b + "ssm_in.weight", inner + channels + heads, N_EMBD, 1.5)
        w.matrix(b + "ssm_conv1d.weight", channels, 4, 1.5)
        w.vector(b + "ssm_conv1d.bias", channels, -0.5, 0.5)
        w.vector(b + "ssm_dt.bias", heads, -2.0, 1.0)
        for name, low, high in (("ssm_a", -1.0, -0.05), ("ssm_d", -1.0, 1.0)):
            w.vector(b + name, heads, low, high)
            w[b + name] = w[b + name][:, None]
        w.norm(b + "ssm_norm.weight", inner)
        w[b + "ssm_norm.weight"] = w[b + "ssm_norm.weight"].reshape(groups, -1)
        w.matrix(b + "ssm_out.weight", N_EMBD, inner)
    kv = [2 if i in attends else 0 for i in range(layers)]
    keys = common_keys(layers, 4, kv, rope__dimension_count=16)
    keys |= SCALES | {"attention.scale": 0.2, "rope.scaling.finetuned": False}
    keys |= {"ssm.conv_kernel": 4, "ssm.state_size": size, "ssm.inner_size": inner}
    keys |= {"ssm.group_count": groups, "ssm.time_step_rank": heads}
    if experts:
        keys |= {"feed_forward_length": 32, "expert_count": experts, "expert_used_count": 2}
        keys["expert_shared_feed_forward_length"] = 96
    return TinyModel("granitehybrid", keys | dotted(more), w)


def kimi_linear(attends: Sequence[int] = (2,), whole: bool = True, **more: Any) -> TinyModel:
    """Four layers; those named have latent attention, the others four heads of 16 with a decay for
    each key dimension; experts behind all but the first. whole: with axes of length 1."""
    w, layers, heads, dim, latent = Weights(9), 4, 4, 16, 24
    w.ends(tied=False)
    for i in range(layers):
        b, inner = f"blk.{i}.", heads * dim
        w.norm(b + "attn_norm.weight", N_EMBD)
        w.norm(b + "ffn_norm.weight", N_EMBD)
        if i == 0:
            w.ffn(i)
        else:
            w.experts(i, 6, 32, 64, fused=False, shared_gate=False)
            w.vector(b + "exp_probs_b.bias", 6, -0.3, 0.3)
        w.matrix(b + "attn_output.weight", N_EMBD, inner)
        if i in attends:
            w.matrix(b + "attn_q.weight", heads * 20, N_EMBD, 1.5)
            w.matrix(b + "attn_kv_a_mqa.weight", latent + 8, N_EMBD, 1.5)
            w.norm(b + "attn_kv_a_norm.weight", latent)
            w.stack(b + "attn_k_b.weight", heads, latent, 12, 1.5)
            w.stack(b + "attn_v_b.weight", heads, dim, latent)
            continue
        for name in "qkv":
            w.matrix(b + f"attn_{name}.weight", inner, N_EMBD, 1.5)
            w.matrix(b + f"ssm_conv1d_{name}.weight", inner, 4, 1.5)
            if whole:
                kernel = b + f"ssm_conv1d_{name}.weight"
                w[kernel] = w[kernel].reshape(1, inner, 1, 4)
        for name in "fg":
            w.matrix(b + f"ssm_{name}_a.weight", dim, N_EMBD)
            w.matrix(b + f"ssm_{name}_b.weight", inner, dim)
        w.matrix(b + "ssm_beta.weight", heads, N_EMBD)
        w.vector(b + "ssm_dt.bias", inner, -2.0, 1.0)
        w.vector(b + "ssm_a", heads, -0.5, -0.02)
        w[b + "ssm_a"] = w[b + "ssm_a"].reshape((1, 1, heads, 1) if whole else (heads, 1))
        w.norm(b + "ssm_norm.weight", dim)
    kv = [1 if i in attends else 0 for i in range(layers)]
    keys = common_keys(layers, heads, kv, attention__key_length=latent + 8)
    keys |= {"rope.dimension_count": 8, "attention.kv_lora_rank": latent}
    keys |= {"attention.key_length_mla": 20, "attention.value_length_mla": dim}
    keys |= {"kda.head_dim": dim, "ssm.conv_kernel": 4, "leading_dense_block_count": 1}
    keys |= {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 32}
    keys |= {"expert_shared_count": 2, "expert_weights_scale": 1.7, "expert_gating_func": 2}
    return TinyModel("kimi-linear", keys | dotted(more), w)


HYBRIDS: dict[str, Callable[[], TinyModel]] = {
    "qwen35": qwen35,
    "qwen35,v=2k,tied": lambda: qwen35(v_heads=4, tied=True),
    "qwen35,v=3k": lambda: qwen35(v_heads=6),
    "qwen35,eps": lambda: qwen35(attention__layer_norm_rms_epsilon=1e-2),
    "qwen35,mtp": lambda: qwen35(mtp=1),
    "qwen35,recurrent": lambda: qwen35(recurrent=[False, True, True, False]),
    "qwen35,all recurrent": lambda: qwen35(recurrent=[True] * 4),
    "qwen35,none recurrent": lambda: qwen35(recurrent=[False] * 4),
    "qwen35,interval": lambda: qwen35(full_attention_interval=2, linear=[True, False] * 2),
    "qwen35,sections": lambda: qwen35(sections=(1, 1, 1, 1), rope__freq_base=1e3),
    "qwen3next": qwen3next,
    "qwen3next,v=2k": lambda: qwen3next(v_heads=4),
    "qwen3next,whole": lambda: qwen3next(v_heads=4, whole=True),
    "qwen3next,mtp": lambda: qwen3next(mtp=1),
    "granitehybrid": granitehybrid,
    "granitehybrid,experts": lambda: granitehybrid(groups=2, experts=6),
    "granitehybrid,rope": lambda: granitehybrid(rope__scaling__finetuned=True),
    "kimi-linear": kimi_linear,
    "kimi-linear,short shapes": lambda: kimi_linear(whole=False),
    "lfm2": lfm2,
    "lfm2,wide,untied": lambda: lfm2(width=5, tied=False),
    "lfm2,none attend": lambda: lfm2(attends=()),
    "lfm2moe": lfm2moe,
    "qwen35moe": qwen35moe,
    "qwen35moe,fused": lambda: qwen35moe(fused=True),
    "qwen35moe,one": lambda: qwen35moe(n_used=1),
    "qwen35moe,all": lambda: qwen35moe(n_used=6),
    "qwen35moe,scale": lambda: qwen35moe(expert_weights_scale=2.5),
    "qwen35moe,mtp": lambda: qwen35moe(mtp=1),
}
