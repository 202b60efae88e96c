"""Hyperparameters that architectures share, read from GGUF metadata with strict types."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..graph.errors import ModelError
from .gguf import REQUIRED, GgufFile
from .gguf.typed import Required

MAX_LAYERS = 512
_TINY = 2.0**-126  # of the normal f32, whose inverses are finite


@dataclass(frozen=True)
class RopeScaling:
    """freq_scale multiplies positions; ext_factor 1 is YaRN, with its original context length, in
    which pairs that turn beta_fast times or more keep their frequency and those that turn beta_slow
    times or less are scaled; attn_factor as op `rope` has it."""

    freq_scale: float = 1.0
    ext_factor: float = 0.0
    attn_factor: float = 1.0
    n_ctx_orig: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True)
class Hparams:
    """Sizes in elements; n_layer counts trunk layers only, n_layer_all also MTP blocks."""

    arch: str
    n_vocab: int
    n_ctx_train: int
    n_embd: int
    n_layer: int
    n_layer_all: int
    n_ff: list[int]
    n_head: list[int]
    n_head_kv: list[int]
    head_dim_k: int
    head_dim_v: int
    eps: float
    n_rot: int
    rope_base: float
    rope_scaling: RopeScaling
    attention_scale: float


def read_hparams(file: GgufFile, arch: str, n_vocab: int, hybrid: bool = False) -> Hparams:
    """The common keys of architecture `arch`. hybrid: layers without attention have no key-value
    heads. Raises GgufError or ModelError naming the key."""

    def key(name: str) -> str:
        return f"{arch}.{name}"

    n_all = file.get_u32(key("block_count"))
    _in_range(file, key("block_count"), n_all, 1, MAX_LAYERS)
    n_mtp = file.get_u32(key("nextn_predict_layers"), 0)
    _in_range(file, key("nextn_predict_layers"), n_mtp, 0, n_all - 1)
    n_embd = file.get_u32(key("embedding_length"))
    _in_range(file, key("embedding_length"), n_embd, 1, 1 << 20)
    n_head, n_head_kv = _head_counts(file, arch, n_all, hybrid)
    dim_k = file.get_u32(key("attention.key_length"), n_embd // n_head[0])
    dim_v = file.get_u32(key("attention.value_length"), n_embd // n_head[0])
    n_rot = file.get_u32(key("rope.dimension_count"), dim_k)
    _in_range(file, key("attention.key_length"), dim_k, 1, 4096)
    _in_range(file, key("attention.value_length"), dim_v, 1, 4096)
    _in_range(file, key("rope.dimension_count"), n_rot, 1, dim_k)
    if n_rot % 2:
        raise ModelError(f"{file.path}: {key('rope.dimension_count')} should be even, got {n_rot}")
    n_ctx_train = file.get_u32(key("context_length"))
    _in_range(file, key("context_length"), n_ctx_train, 1, (1 << 32) - 1)
    eps = read_positive(file, key("attention.layer_norm_rms_epsilon"))
    _in_range(file, key("attention.layer_norm_rms_epsilon"), eps, 0, 1)
    return Hparams(
        arch=arch,
        n_vocab=n_vocab,
        n_ctx_train=n_ctx_train,
        n_embd=n_embd,
        n_layer=n_all - n_mtp,
        n_layer_all=n_all,
        n_ff=file.get_per_layer(key("feed_forward_length"), n_all, 0),
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim_k=dim_k,
        head_dim_v=dim_v,
        eps=eps,
        n_rot=n_rot,
        rope_base=read_positive(file, key("rope.freq_base"), 10000.0, above=1.0),
        rope_scaling=_rope_scaling(file, arch),
        attention_scale=read_optional(file, key("attention.scale")) or 1.0 / math.sqrt(dim_k),
    )


def _head_counts(
    file: GgufFile, arch: str, n_layers: int, hybrid: bool
) -> tuple[list[int], list[int]]:
    """Query heads and key-value heads of every layer, the latter by default as many."""
    key, key_kv = f"{arch}.attention.head_count", f"{arch}.attention.head_count_kv"
    n_head = file.get_per_layer(key, n_layers)
    for heads in n_head:
        _in_range(file, key, heads, 1, 4096)
    if key_kv not in file.metadata:
        return n_head, list(n_head)
    n_head_kv = file.get_per_layer(key_kv, n_layers)
    for heads, kv in zip(n_head, n_head_kv, strict=True):
        if kv < (0 if hybrid else 1) or (kv and heads % kv):
            raise ModelError(f"{file.path}: {key_kv} should divide head_count {heads}, got {kv}")
    return n_head, n_head_kv


def read_positive(
    file: GgufFile, key: str, default: float | Required = REQUIRED, above: float = 0.0
) -> float:
    """A finite f32 above `above`. Raises ModelError for others."""
    value = file.get_f32(key, default)
    if not above < value < math.inf:
        raise ModelError(f"{file.path}: {key} should be a number above {above:g}, got {value}")
    return value


def read_count(
    file: GgufFile, key: str, low: int, high: int, default: int | Required = REQUIRED
) -> int:
    """A u32 in low .. high. Raises ModelError for others."""
    value = file.get_u32(key, default)
    _in_range(file, key, value, low, high)
    return value


def read_optional(file: GgufFile, key: str) -> float:
    """A finite f32 greater than 0 whose inverse is finite, too; 0 where the key is absent or 0,
    which both mean none."""
    if file.get_f32(key, 0.0) == 0:
        return 0.0
    value = read_positive(file, key)
    if value < _TINY:
        raise ModelError(f"{file.path}: {key} should have a finite inverse, got {value}")
    return value


def _rope_scaling(file: GgufFile, arch: str) -> RopeScaling:
    prefix = f"{arch}.rope.scaling"
    kind = file.get_str(f"{prefix}.type", "linear")
    if kind not in ("none", "linear", "yarn"):
        raise ModelError(f"{file.path}: {prefix}.type should be none, linear or yarn, got {kind!r}")
    old = read_optional(file, f"{arch}.rope.scale_linear")
    factor = read_optional(file, f"{prefix}.factor") or old
    attn_factor = read_positive(file, f"{prefix}.attn_factor", 1.0)
    if kind == "none" or factor == 0.0:
        return RopeScaling(attn_factor=attn_factor)
    if kind == "linear":
        return RopeScaling(freq_scale=1.0 / factor, attn_factor=attn_factor)
    # 1 + 0.1 ln(factor), by which op `rope` multiplies, is positive from e**-10 on.
    _in_range(file, f"{prefix}.factor", factor, 1e-3, 1e6)
    key = f"{prefix}.original_context_length"
    n_ctx_orig = file.get_u32(key, file.get_u32(f"{arch}.context_length"))
    _in_range(file, key, n_ctx_orig, 1, (1 << 32) - 1)
    ext_factor = file.get_f32(f"{prefix}.yarn_ext_factor", 1.0)
    _in_range(file, f"{prefix}.yarn_ext_factor", ext_factor, 0, 1)
    return RopeScaling(
        1.0 / factor,
        ext_factor,
        attn_factor * _yarn_magnitude(file, prefix, factor, ext_factor),
        n_ctx_orig,
        read_positive(file, f"{prefix}.yarn_beta_fast", 32.0),
        read_positive(file, f"{prefix}.yarn_beta_slow", 1.0),
    )


def _yarn_magnitude(file: GgufFile, prefix: str, factor: float, ext_factor: float) -> float:
    """What queries and keys are multiplied by, over the 1 + 0.1 ln(factor) that op `rope` does.

    yarn_attn_factor is all of it; without that, yarn_log_multiplier m divides it by
    1 + 0.1 m ln(factor), as mscale_all_dim does in a checkpoint's configuration."""
    whole = read_optional(file, f"{prefix}.yarn_attn_factor")
    if ext_factor == 0:
        return whole or 1.0
    usual = 1 + 0.1 * math.log(factor)
    if whole:
        return whole / usual
    multiplier = read_optional(file, f"{prefix}.yarn_log_multiplier")
    paper = 1 + 0.1 * math.log(factor) if factor > 1 else 1.0
    divided = 1 + 0.1 * multiplier * math.log(factor) if factor > 1 else 1.0
    return paper / divided / usual


def _in_range(file: GgufFile, key: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ModelError(f"{file.path}: {key} should be {low} to {high}, got {value}")
