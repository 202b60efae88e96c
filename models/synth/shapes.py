"""The shapes by name: GGUF metadata of published models, without their vocabularies.

A row is an architecture's keys without its prefix; which tensors follow from them is what the
architecture says. Source: the models' config.json files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...graph.errors import RequestError
from ..moe import SIGMOID


@dataclass(frozen=True)
class Shape:
    """A model's sizes: architecture, rows of its vocabulary, whether the head is the embedding, and
    keys without the architecture's prefix: int for u32, float for f32, lists of int for i32,
    bools, texts."""

    arch: str
    n_vocab: int
    tied: bool
    keys: dict[str, Any]

    def shortened(self, blocks: int) -> Shape:
        """The same with so many of the first blocks, or all of them where it has fewer."""
        n = self.keys["block_count"]
        lists = {key: value[:blocks] for key, value in self.keys.items() if _by_block(value, n)}
        return replace(self, keys=self.keys | lists | {"block_count": min(n, blocks)})


def _by_block(value: Any, n_block: int) -> bool:
    return isinstance(value, list) and len(value) == n_block


def _common(
    n_embd: int, n_layer: int, n_ff: int, heads: tuple[int, int, int], n_ctx: int, base: float
) -> dict[str, Any]:
    """heads: of queries, of keys and values, and the size of one."""
    n_head, n_kv, dim = heads
    return {
        "context_length": n_ctx,
        "embedding_length": n_embd,
        "block_count": n_layer,
        "feed_forward_length": n_ff,
        "attention.head_count": n_head,
        "attention.head_count_kv": n_kv,
        "attention.key_length": dim,
        "attention.value_length": dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": dim,
        "rope.freq_base": base,
    }


def _llama(
    n_embd: int, n_layer: int, n_ff: int, heads: tuple[int, int, int], tied: bool = False
) -> Shape:
    keys = _common(n_embd, n_layer, n_ff, heads, 131072 if tied else 8192, 5e5)
    return Shape("llama", 128256, tied, keys | {"attention.layer_norm_rms_epsilon": 1e-5})


def _qwen3(n_embd: int, n_layer: int, n_ff: int, n_head: int, tied: bool) -> Shape:
    keys = _common(n_embd, n_layer, n_ff, (n_head, 8, 128), 40960, 1e6)
    return Shape("qwen3", 151936, tied, keys)


def _experts(n: int, used: int, n_ff: int) -> dict[str, Any]:
    return {"expert_count": n, "expert_used_count": used, "expert_feed_forward_length": n_ff}


def _qwen3moe(n_embd: int, n_layer: int, n_ff: int, n_head: int, n_ff_expert: int) -> Shape:
    keys = _common(n_embd, n_layer, n_ff, (n_head, 4, 128), 40960, 1e6)
    return Shape("qwen3moe", 151936, False, keys | _experts(128, 8, n_ff_expert))


def _gemma3(
    n_embd: int, n_layer: int, n_ff: int, heads: tuple[int, int, int], window: int
) -> Shape:
    n_ctx = 131072 if n_embd > 2000 else 32768
    keys = _common(n_embd, n_layer, n_ff, heads, n_ctx, 1e6)
    return Shape("gemma3", 262144, True, keys | {"attention.sliding_window": window})


def _gpt_oss(n_layer: int, n_expert: int) -> Shape:
    keys = _common(2880, n_layer, 2880, (64, 8, 64), 131072, 1.5e5) | _experts(n_expert, 4, 2880)
    keys |= {"attention.layer_norm_rms_epsilon": 1e-5, "attention.sliding_window": 128}
    keys |= {"rope.scaling.type": "yarn", "rope.scaling.factor": 32.0}
    return Shape("gpt-oss", 201088, False, keys | {"rope.scaling.original_context_length": 4096})


def _delta_net(k_heads: int, v_heads: int, dim: int, rot: int) -> dict[str, Any]:
    """Key heads, value heads, and their size; what is rotated of a query, in elements."""
    pairs = rot // 2
    third = pairs // 3
    return {
        "rope.dimension_count": rot,
        "rope.dimension_sections": [pairs - 2 * third, third, third, 0],
        "ssm.conv_kernel": 4,
        "ssm.state_size": dim,
        "ssm.group_count": k_heads,
        "ssm.time_step_rank": v_heads,
        "ssm.inner_size": dim * v_heads,
        "full_attention_interval": 4,
    }


def _qwen35(
    n_embd: int, n_layer: int, n_ff: int, n_head: int, n_kv: int, v_heads: int, tied: bool
) -> Shape:
    keys = _common(n_embd, n_layer, n_ff, (n_head, n_kv, 256), 262144, 1e7)
    return Shape("qwen35", 248320, tied, keys | _delta_net(16, v_heads, 128, 64))


def _tiny(arch: str, **more: Any) -> Shape:
    keys = _common(256, 8, 768, (4, 2, 64), 32768, 1e6)
    return Shape(arch, 4096, True, keys | {k.replace("__", "."): v for k, v in more.items()})


def _attending(at: set[int], n_layer: int, n_kv: int) -> list[int]:
    """Key-value heads by layer: none in those that do not attend."""
    return [n_kv if i in at else 0 for i in range(n_layer)]


def _mamba(heads: int, dim: int, state: int) -> dict[str, Any]:
    """Heads, the size of one, and the values that it keeps of each."""
    return {
        "ssm.conv_kernel": 4,
        "ssm.state_size": state,
        "ssm.group_count": 1,
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * dim,
    }


def _granite(
    common: dict[str, Any], attends: set[int], mamba: dict[str, Any], scales: tuple[float, ...]
) -> dict[str, Any]:
    """scales: of embeddings, residuals, logits and scores."""
    names = ("embedding_scale", "residual_scale", "logit_scale", "attention.scale")
    kv = _attending(attends, common["block_count"], common["attention.head_count_kv"])
    own = {"attention.head_count_kv": kv, "rope.scaling.finetuned": False}
    return common | mamba | own | dict(zip(names, scales, strict=True))


def _kimi(
    common: dict[str, Any], attends: set[int], latent: int, nope: int, dim_v: int
) -> dict[str, Any]:
    """latent: elements of what keys and values are made of; nope, dim_v: those of a head's key,
    what is beside the latent aside, and of its value. Queries and keys are not rotated."""
    rot = common["rope.dimension_count"]
    return common | {
        "attention.head_count_kv": _attending(attends, common["block_count"], 1),
        "attention.kv_lora_rank": latent,
        "attention.key_length": latent + rot,
        "attention.value_length": latent,
        "attention.key_length_mla": nope + rot,
        "attention.value_length_mla": dim_v,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "ssm.conv_kernel": 4,
        "leading_dense_block_count": 1,
        "expert_shared_count": 1,
        "expert_gating_func": SIGMOID,
    }


def _lfm2(common: dict[str, Any], attends: set[int]) -> dict[str, Any]:
    kv = _attending(attends, common["block_count"], common["attention.head_count_kv"])
    own = {"attention.head_count_kv": kv, "attention.layer_norm_rms_epsilon": 1e-5}
    return common | own | {"shortconv.l_cache": 3}


_EVERY_FOURTH = {3, 7}  # of the eight layers of a tiny shape
_TINY = _common(256, 8, 768, (4, 2, 64), 32768, 1e6)
_GEMMA2 = {"attention.sliding_window": 4096, "attn_logit_softcapping": 50.0}
_GEMMA2 |= {"final_logit_softcapping": 30.0}
_GLM = {"expert_shared_count": 1, "leading_dense_block_count": 1, "expert_gating_func": SIGMOID}
_QWEN3NEXT = _common(2048, 48, 5120, (16, 2, 256), 262144, 1e7) | _delta_net(16, 32, 128, 64)
_KIMI_LAYERS = {*range(3, 24, 4), 26}
_TINY_DELTA_NET = _delta_net(4, 8, 32, 16)
_SHARED = "expert_shared_feed_forward_length"
_QWEN35MOE = _common(2048, 40, 512, (16, 2, 256), 262144, 1e7) | _delta_net(16, 32, 128, 64)

SHAPES = {
    "tiny": _tiny("qwen35", **_TINY_DELTA_NET),
    "qwen35-0.8b": _qwen35(1024, 24, 3584, 8, 2, 16, tied=True),
    "qwen35-2b": _qwen35(2048, 24, 6144, 8, 2, 16, tied=True),
    "qwen35-4b": _qwen35(2560, 32, 9216, 16, 4, 32, tied=True),
    "qwen35-9b": _qwen35(4096, 32, 12288, 16, 4, 32, tied=False),
    "qwen35-27b": _qwen35(5120, 64, 17408, 24, 4, 48, tied=False),
    "qwen35moe-tiny": _tiny(
        "qwen35moe", **_TINY_DELTA_NET, **_experts(16, 4, 256), **{_SHARED: 256}
    ),
    "qwen35moe-35b-a3b": Shape(
        "qwen35moe", 248320, False, _QWEN35MOE | _experts(256, 8, 512) | {_SHARED: 512}
    ),
    "qwen3-tiny": _tiny("qwen3"),
    "qwen3-0.6b": _qwen3(1024, 28, 3072, 16, tied=True),
    "qwen3-1.7b": _qwen3(2048, 28, 6144, 16, tied=True),
    "qwen3-4b": _qwen3(2560, 36, 9728, 32, tied=True),
    "qwen3-8b": _qwen3(4096, 36, 12288, 32, tied=False),
    "qwen3-14b": _qwen3(5120, 40, 17408, 40, tied=False),
    "qwen3-32b": _qwen3(5120, 64, 25600, 64, tied=False),
    "qwen3moe-tiny": _tiny("qwen3moe", **_experts(16, 4, 256)),
    "qwen3moe-30b-a3b": _qwen3moe(2048, 48, 6144, 32, 768),
    "qwen3moe-235b-a22b": _qwen3moe(4096, 94, 12288, 64, 1536),
    "llama-tiny": _tiny("llama"),
    "llama-3.2-1b": _llama(2048, 16, 8192, (32, 8, 64), tied=True),
    "llama-3.2-3b": _llama(3072, 28, 8192, (24, 8, 128), tied=True),
    "llama-3-8b": _llama(4096, 32, 14336, (32, 8, 128)),
    "llama-3-70b": _llama(8192, 80, 28672, (64, 8, 128)),
    "gpt-oss-20b": _gpt_oss(24, 32),
    "gpt-oss-120b": _gpt_oss(36, 128),
    "qwen2-tiny": _tiny("qwen2"),
    "qwen2.5-0.5b": Shape("qwen2", 151936, True, _common(896, 24, 4864, (14, 2, 64), 32768, 1e6)),
    "qwen2.5-7b": Shape("qwen2", 152064, False, _common(3584, 28, 18944, (28, 4, 128), 32768, 1e6)),
    "qwen3next-tiny": _tiny(
        "qwen3next", **_TINY_DELTA_NET, **_experts(16, 4, 256), **{_SHARED: 256}
    ),
    "qwen3next-80b-a3b": Shape(
        "qwen3next", 151936, False, _QWEN3NEXT | _experts(512, 10, 512) | {_SHARED: 512}
    ),
    "smollm3-tiny": _tiny("smollm3"),
    "smollm3-3b": Shape(
        "smollm3", 128256, True, _common(2048, 36, 11008, (16, 4, 128), 65536, 5e6)
    ),
    "phi3-tiny": _tiny("phi3"),
    "phi3-mini-4k": Shape(
        "phi3",
        32064,
        False,
        _common(3072, 32, 8192, (32, 32, 96), 4096, 1e4) | {"attention.sliding_window": 2047},
    ),
    "glm4moe-tiny": _tiny("glm4moe", **_GLM, **_experts(16, 4, 256)),
    "glm-4.5-air": Shape(
        "glm4moe",
        151552,
        False,
        _common(4096, 46, 10944, (96, 8, 128), 131072, 1e6)
        | {"rope.dimension_count": 64, "attention.layer_norm_rms_epsilon": 1e-5}
        | _GLM
        | _experts(128, 8, 1408),
    ),
    "granitehybrid-tiny": Shape(
        "granitehybrid",
        4096,
        True,
        _granite(_TINY, _EVERY_FOURTH, _mamba(8, 32, 32), (3.0, 0.6, 1.5, 0.125)),
    ),
    "granite-4.0-h-micro": Shape(
        "granitehybrid",
        100352,
        True,
        _granite(
            _common(2048, 40, 8192, (32, 8, 64), 131072, 1e4),
            {5, 15, 25, 35},
            _mamba(64, 64, 128),
            (12.0, 0.22, 8.0, 0.015625),
        ),
    ),
    "granite-4.0-h-tiny": Shape(
        "granitehybrid",
        100352,
        True,
        _granite(
            _common(1536, 40, 512, (12, 4, 128), 131072, 1e4),
            {5, 15, 25, 35},
            _mamba(48, 64, 128),
            (12.0, 0.22, 6.0, 0.0078125),
        )
        | _experts(64, 6, 512)
        | {_SHARED: 1024},
    ),
    "kimi-linear-tiny": Shape(
        "kimi-linear",
        4096,
        False,
        _kimi(_TINY | {"rope.dimension_count": 16}, _EVERY_FOURTH, 48, 32, 32)
        | {"kda.head_dim": 32}
        | _experts(16, 4, 256),
    ),
    "kimi-linear-48b-a3b": Shape(
        "kimi-linear",
        163840,
        False,
        _kimi(_common(2304, 27, 9216, (32, 32, 64), 1048576, 1e4), _KIMI_LAYERS, 512, 128, 128)
        | {"kda.head_dim": 128, "expert_weights_scale": 2.446}
        | _experts(256, 8, 1024),
    ),
    "lfm2-tiny": Shape("lfm2", 4096, True, _lfm2(_TINY, _EVERY_FOURTH)),
    "lfm2-1.2b": Shape(
        "lfm2",
        65536,
        True,
        _lfm2(_common(2048, 16, 8192, (32, 8, 64), 128000, 1e6), {2, 5, 8, 10, 12, 14}),
    ),
    "lfm2moe-tiny": Shape(
        "lfm2moe",
        4096,
        True,
        _lfm2(_TINY, _EVERY_FOURTH) | _experts(16, 4, 256) | {"leading_dense_block_count": 2},
    ),
    "lfm2-8b-a1b": Shape(
        "lfm2moe",
        65536,
        True,
        _lfm2(_common(2048, 24, 7168, (32, 8, 64), 128000, 1e6), {2, 6, 10, 14, 18, 21})
        | _experts(32, 4, 1792)
        | {"leading_dense_block_count": 2},
    ),
    "gemma2-tiny": _tiny("gemma2", **_GEMMA2 | {"attention.sliding_window": 256}),
    "gemma2-2b": Shape(
        "gemma2", 256000, True, _common(2304, 26, 9216, (8, 4, 256), 8192, 1e4) | _GEMMA2
    ),
    "gemma3-tiny": _tiny("gemma3", attention__sliding_window=256),
    "gemma3-270m": _gemma3(640, 18, 2048, (4, 1, 256), 512),
    "gemma3-1b": _gemma3(1152, 26, 6912, (4, 1, 256), 512),
    "gemma3-4b": _gemma3(2560, 34, 10240, (8, 4, 256), 1024),
    "gemma3-12b": _gemma3(3840, 48, 15360, (16, 8, 256), 1024),
    "gemma3-27b": _gemma3(5376, 62, 21504, (32, 16, 128), 1024),
}


def find_shape(name: str) -> Shape:
    """A shape by its name, in any case. Raises RequestError listing all."""
    found = SHAPES.get(name.lower())
    if found is None:
        raise RequestError(f"shape: expected one of {', '.join(SHAPES)}, got {name!r}")
    return found
