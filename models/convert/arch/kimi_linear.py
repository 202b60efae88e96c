"""Checkpoints of Kimi Linear."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...moe import SIGMOID
from ..checkpoint import Array, Shape
from ..family import NUMBERED, PRE_NORMS, Family, Has, Keys, Table, To, experts, register_family
from ..transforms import Each, Whole
from .qwen35 import rates

KERNEL = Whole(lambda x: x.reshape(_kernel(x.shape)), lambda shape: _kernel(shape))


def _kernel(shape: Shape) -> Shape:
    """[C, 1, W] or [C, W] of a convolution as files have it."""
    return (1, shape[0], 1, shape[-1])


@register_family
class KimiLinear(Family):
    """What gives keys and values of latents is split by head, keys' part turned, so that queries
    can be multiplied with it. Configurations name layers by lists, counted from 1 on in older
    ones."""

    arch = "kimi-linear"
    hf = ("KimiLinearForCausalLM",)
    model_types = ("kimi_linear",)
    context = "model_max_length"

    def keys(self) -> Keys:
        """Sizes of both kinds of layers, which are which, experts. Raises ModelError for settings
        that a file has no place for."""
        c = self.c
        self._check()
        latent, rope = c.integer("kv_lora_rank"), c.integer("qk_rope_head_dim")
        own: Keys = {
            "attention.head_count_kv": [int(a) for a in self._attends()],
            "attention.kv_lora_rank": latent,
            "attention.key_length": latent + rope,
            "attention.key_length_mla": c.integer("qk_nope_head_dim") + rope,
            "attention.value_length_mla": c.integer("v_head_dim"),
            "rope.dimension_count": rope,
            "kda.head_dim": self._linear("head_dim", "linear_head_dim"),
            "ssm.conv_kernel": self._linear("short_conv_kernel_size", "linear_conv_kernel_dim"),
            "leading_dense_block_count": self._n_dense(),
            "expert_feed_forward_length": c.integer("moe_intermediate_size"),
            "expert_shared_count": c.integer("num_shared_experts", "n_shared_experts"),
            "expert_weights_scale": c.number("routed_scaling_factor"),
            "expert_weights_norm": c.flag("moe_renormalize", "norm_topk_prob", default=True),
            "expert_gating_func": SIGMOID,
        }
        found = super().keys() | own
        found.pop("attention.value_length", None)
        return found

    def _check(self) -> None:
        c, heads = self.c, self.c.integer("num_attention_heads")
        of_delta = self._linear("num_heads", "linear_num_heads")
        if of_delta != heads:
            raise c.fault("linear_num_heads", f"num_attention_heads, {heads}", of_delta)
        groups = c.integer("num_expert_group", "n_group", default=1)
        for name, plain, got in (
            ("q_lora_rank", "null", c.get("q_lora_rank")),
            ("attention_bias", "false", c.flag("attention_bias", default=False)),
            ("num_expert_group", "1", groups if groups != 1 else None),
        ):
            if got:
                raise c.fault(name, f"{plain}, which is what is computed", got)

    def _linear(self, old: str, new: str) -> int:
        """A size of delta layers, which older configurations have in an object of its own."""
        given = (self.c.get("linear_attn_config") or {}).get(old)
        return int(given) if given is not None else self.c.integer(new)

    def _attends(self) -> list[bool]:
        c, n = self.c, self.n_layer
        older = c.get("linear_attn_config") or {}
        if "full_attn_layers" in older:
            return [i + 1 in older["full_attn_layers"] for i in range(n)]
        return [kind == "full_attention" for kind in c.items("layer_types", count=n)]

    def _n_dense(self) -> int:
        kinds = self.c.items("mlp_layer_types", default=None)
        if kinds is None:
            return self.c.integer("first_k_dense_replace", default=1)
        n = kinds.index("sparse") if "sparse" in kinds else len(kinds)
        if "dense" in kinds[n:]:
            raise self.c.fault("mlp_layer_types", "dense layers before all others", kinds)
        return n

    def block(self, i: int, has: Has) -> Table:
        """A layer of either kind."""
        table = PRE_NORMS | {"self_attn.o_proj.weight": To("attn_output.weight")}
        table |= self._latent() if self._attends()[i] else self._delta()
        return table | (_dense(has) if i < self._n_dense() else _experts(has))

    def _latent(self) -> Table:
        c, b = self.c, "self_attn."
        heads, nope = c.integer("num_attention_heads"), c.integer("qk_nope_head_dim")
        dim_v, latent = c.integer("v_head_dim"), c.integer("kv_lora_rank")

        def part(take: Callable[[Array], Array], rows: int, columns: int) -> Whole:
            def change(x: Array) -> Array:
                return np.ascontiguousarray(take(x.reshape(heads, nope + dim_v, latent)))

            return Whole(change, lambda _: (heads, rows, columns))

        return {
            f"{b}q_proj.weight": To("attn_q.weight"),
            f"{b}kv_a_proj_with_mqa.weight": To("attn_kv_a_mqa.weight"),
            f"{b}kv_a_layernorm.weight": To("attn_kv_a_norm.weight"),
            f"{b}kv_b_proj.weight": (
                To("attn_k_b.weight", part(lambda x: x[:, :nope].swapaxes(1, 2), latent, nope)),
                To("attn_v_b.weight", part(lambda x: x[:, nope:], dim_v, latent)),
            ),
        }

    def _delta(self) -> Table:
        b = "self_attn."
        table: Table = {
            f"{b}{name}_proj.weight": To(f"ssm_{name}.weight")
            for name in ("f_a", "f_b", "g_a", "g_b")
        }
        for name in "qkv":
            table[f"{b}{name}_proj.weight"] = To(f"attn_{name}.weight")
            kernel = To(f"ssm_conv1d_{name}.weight", KERNEL, kind="f32")
            table[f"{b}{name}_conv1d.weight"] = kernel
        return table | {
            f"{b}b_proj.weight": To("ssm_beta.weight"),
            f"{b}A_log": To("ssm_a", Each(rates), kind="f32"),
            f"{b}dt_bias": To("ssm_dt.bias"),
            f"{b}o_norm.weight": To("ssm_norm.weight"),
        }


def _dense(has: Has) -> Table:
    """The first layers' block, which transformers names as it does experts."""
    b = "block_sparse_moe." if has("block_sparse_moe.gate_proj.weight") else "mlp."
    return {f"{b}{name}_proj.weight": To(f"ffn_{name}.weight") for name in ("gate", "up", "down")}


def _experts(has: Has) -> Table:
    b = "block_sparse_moe."
    table: Table = {
        f"{b}shared_experts.{name}_proj.weight": To(f"ffn_{name}_shexp.weight")
        for name in ("gate", "up", "down")
    }
    return table | {
        f"{b}gate.e_score_correction_bias": To("exp_probs_b.bias"),
        **experts(has, b, NUMBERED),
    }
