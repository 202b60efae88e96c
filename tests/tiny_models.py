"""Tiny model files with random weights, of every architecture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tiny_hybrids import HYBRIDS, qwen3next, qwen35, qwen35moe
from tiny_parts import N_EMBD, N_VOCAB, VOCABULARIES, TinyModel, Typed, Weights, common_keys, dotted

__all__ = ["N_EMBD", "N_VOCAB", "VARIANTS", "VOCABULARIES", "WINDOW", "TinyModel", "Typed"]
__all__ += ["Weights", "gemma3", "llama", "qwen3", "qwen3next", "qwen35", "qwen35moe"]
WINDOW = 8


def llama(
    tied: bool = False, factors: bool = False, bias: bool = False, layers: int = 2, **more: Any
) -> TinyModel:
    """Four heads of 16 over two; optional rope_freqs.weight and biases. more: further keys."""
    w = Weights(1)
    w.ends(tied)
    if factors:
        w.vector("rope_freqs.weight", 8, 1.0, 8.0)
    for i in range(layers):
        b = f"blk.{i}."
        w.norm(b + "attn_norm.weight", N_EMBD)
        w.attention(i, 4, 2, 16)
        w.norm(b + "ffn_norm.weight", N_EMBD)
        w.ffn(i)
        for name, n in (("q", 64), ("k", 32), ("v", 32), ("output", 64)):
            if bias:
                w.vector(f"{b}attn_{name}.bias", n, -1.0, 1.0)
    return TinyModel("llama", common_keys(layers, 4, 2, rope__dimension_count=16, **more), w)


def llama_per_layer() -> TinyModel:
    """Head counts and widths that differ between layers."""
    w = Weights(2)
    w.ends(tied=False)
    heads, kv, n_ff = [4, 2], [2, 1], [96, 64]
    for i in range(2):
        w.norm(f"blk.{i}.attn_norm.weight", N_EMBD)
        w.attention(i, heads[i], kv[i], 16)
        w.norm(f"blk.{i}.ffn_norm.weight", N_EMBD)
        w.ffn(i, n_ff[i])
    more = {"attention.key_length": 16, "attention.value_length": 16, "feed_forward_length": n_ff}
    return TinyModel("llama", common_keys(2, heads, kv) | more, w)


def qwen3(tied: bool = True, **more: Any) -> TinyModel:
    """Four heads of 32 over two, so that all heads are twice the embedding."""
    w = Weights(3)
    w.ends(tied)
    for i in range(2):
        w.norm(f"blk.{i}.attn_norm.weight", N_EMBD)
        w.attention(i, 4, 2, 32, qk_norm=True)
        w.norm(f"blk.{i}.ffn_norm.weight", N_EMBD)
        w.ffn(i)
    keys = common_keys(2, 4, 2, attention__key_length=32, attention__value_length=32)
    keys["rope.freq_base"] = 1e6
    return TinyModel("qwen3", keys | dotted(more), w)


def gemma3(cap: float = 0.0, pattern: list[bool] | None = None, **more: Any) -> TinyModel:
    """Seven layers, the sixth of them global, the others with a window of 8."""
    w = Weights(4)
    w.ends(tied=True, embedding=1 / np.sqrt(N_EMBD))
    for i in range(7):
        for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            w.norm(f"blk.{i}.{name}.weight", N_EMBD)
        w.attention(i, 4, 1, 32, qk_norm=True)
        w.ffn(i)
    keys = common_keys(7, 4, 1, attention__key_length=32, attention__value_length=32, **more)
    keys |= {"attention.sliding_window": WINDOW, "rope.freq_base": 1e6}
    if cap:
        keys["final_logit_softcapping"] = cap
    if pattern:
        keys["attention.sliding_window_pattern"] = pattern
    return TinyModel("gemma3", keys, w)


_YARN: dict[str, Any] = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}
_LONG: dict[str, Any] = _YARN | {"rope__scaling__original_context_length": 4096}
_LINEAR: dict[str, Any] = {"rope__scaling__type": "linear", "rope__scaling__factor": 8.0}

VARIANTS: dict[str, Callable[[], TinyModel]] = {
    "llama": llama,
    "llama,tied": lambda: llama(tied=True),
    "llama,factors": lambda: llama(factors=True),
    "llama,bias": lambda: llama(bias=True),
    "llama,linear": lambda: llama(**_LINEAR),
    "llama,old linear": lambda: llama(rope__scale_linear=8.0),
    "llama,yarn": lambda: llama(**_LONG),
    "llama,yarn,short": lambda: llama(**_YARN),
    "llama,yarn,sized": lambda: llama(**_LONG, rope__scaling__attn_factor=1.3),
    "llama,linear,sized": lambda: llama(**_LINEAR, rope__scaling__attn_factor=1.3),
    "llama,no scaling": lambda: llama(rope__scaling__type="none", rope__scaling__factor=8.0),
    "llama,per layer": llama_per_layer,
    "qwen3": qwen3,
    "qwen3,untied": lambda: qwen3(tied=False),
    "qwen3,partial": lambda: qwen3(rope__dimension_count=16),
    "qwen3,scale": lambda: qwen3(attention__scale=0.3),
    "gemma3": gemma3,
    "gemma3,cap": lambda: gemma3(cap=2.0),
    "gemma3,base": lambda: gemma3(rope__freq_base_swa=100.0),
    "gemma3,linear": lambda: gemma3(**_LINEAR),
    "gemma3,pattern": lambda: gemma3(pattern=[True, False, True, True, False, False, True]),
    **HYBRIDS,
}
