"""Checkpoints of LFM2, dense and mixture of experts."""

from __future__ import annotations

from typing import ClassVar

from ...moe import SIGMOID
from ..family import NUMBERED, Family, Has, Keys, Table, To, experts, register_family
from ..transforms import SQUEEZE

THETA = 1e6  # where a configuration has none
ENDS: Table = {
    "embed_tokens.weight": To("token_embd.weight"),
    "embedding_norm.weight": To("token_embd_norm.weight"),
    "lm_head.weight": To("output.weight", optional=True),
}
ATTEND: Table = {
    "self_attn.q_proj.weight": To("attn_q.weight"),
    "self_attn.k_proj.weight": To("attn_k.weight"),
    "self_attn.v_proj.weight": To("attn_v.weight"),
    "self_attn.out_proj.weight": To("attn_output.weight"),
    "self_attn.q_layernorm.weight": To("attn_q_norm.weight"),
    "self_attn.k_layernorm.weight": To("attn_k_norm.weight"),
}
FFN: Table = {
    "feed_forward.w1.weight": To("ffn_gate.weight"),
    "feed_forward.w3.weight": To("ffn_up.weight"),
    "feed_forward.w2.weight": To("ffn_down.weight"),
}
CONVOLVE: Table = {
    "conv.in_proj.weight": To("shortconv.in_proj.weight"),
    "conv.conv.weight": To("shortconv.conv.weight", SQUEEZE),
    "conv.out_proj.weight": To("shortconv.out_proj.weight"),
}


@register_family
class Lfm2(Family):
    """The norm before the head is named after the embedding, and older configurations give a width
    of feed-forward layers of which two thirds are taken, rounded up."""

    arch = "lfm2"
    hf: ClassVar[tuple[str, ...]] = ("Lfm2ForCausalLM", "LFM2ForCausalLM")
    model_types: ClassVar[tuple[str, ...]] = ("lfm2",)
    eps = "norm_eps"

    def keys(self) -> Keys:
        """The convolutions' width; no key-value heads in layers that convolve."""
        c = self.c
        if c.flag("conv_bias", default=False):
            raise c.fault("conv_bias", "false; a file has no place for biases", True)
        heads = c.integer("num_key_value_heads")
        own: Keys = {
            "attention.head_count_kv": [heads if a else 0 for a in self._attends()],
            "feed_forward_length": self._n_ff(),
            "shortconv.l_cache": c.integer("conv_L_cache"),
        }
        return {"rope.freq_base": THETA} | super().keys() | own

    def _attends(self) -> list[bool]:
        c, n = self.c, self.n_layer
        kinds = c.items("layer_types", default=None, count=n)
        if kinds is None:
            at = c.items("full_attn_idxs", default=list(range(n)))
            return [i in at for i in range(n)]
        return [kind != "conv" for kind in kinds]

    def _n_ff(self) -> int:
        c = self.c
        width = c.integer("block_ff_dim", "intermediate_size")
        if not c.flag("block_auto_adjust_ff_dim", default=True):
            return width
        width = int(c.number("block_ffn_dim_multiplier", default=1.0) * (2 * width // 3))
        step = c.integer("block_multiple_of", default=256)
        return -(-width // step) * step

    def ends(self) -> Table:
        """With the norm's own name."""
        return ENDS

    def block(self, i: int, has: Has) -> Table:
        """A layer of either kind."""
        table: Table = {
            "operator_norm.weight": To("attn_norm.weight"),
            "ffn_norm.weight": To("ffn_norm.weight"),
        }
        table |= ATTEND if self._attends()[i] else CONVOLVE
        return table | self.feed_forward(i, has)

    def feed_forward(self, i: int, has: Has) -> Table:
        """The dense block."""
        return FFN


@register_family
class Lfm2Moe(Lfm2):
    """Dense layers first, then experts."""

    arch = "lfm2moe"
    hf = ("Lfm2MoeForCausalLM",)
    model_types = ("lfm2_moe",)

    def keys(self) -> Keys:
        """Experts; widths are as they are told."""
        c = self.c
        return super().keys() | {
            "feed_forward_length": c.integer("intermediate_size"),
            "expert_feed_forward_length": c.integer("moe_intermediate_size"),
            "leading_dense_block_count": c.integer("num_dense_layers"),
            "expert_gating_func": SIGMOID,
            "expert_weights_scale": c.number("routed_scaling_factor", default=1.0),
            "expert_weights_norm": c.flag("norm_topk_prob", default=True),
        }

    def feed_forward(self, i: int, has: Has) -> Table:
        """The dense block, or experts."""
        if i < self.c.integer("num_dense_layers"):
            return super().feed_forward(i, has)
        table = experts(has, "feed_forward.", NUMBERED)
        if self.c.flag("use_expert_bias", default=True):
            table["feed_forward.expert_bias"] = To("exp_probs_b.bias")
        return table
