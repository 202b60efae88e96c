"""Checkpoints of GLM-4.5 and its successors, MTP block included."""

from __future__ import annotations

from typing import Any, ClassVar

from ...moe import SIGMOID
from ..family import (
    ATTENTION,
    FFN,
    PRE_NORMS,
    QK_NORMS,
    Family,
    Has,
    Keys,
    Table,
    To,
    experts,
    register_family,
)

MTP: Table = {
    "eh_proj.weight": To("nextn.eh_proj.weight"),
    "enorm.weight": To("nextn.enorm.weight"),
    "hnorm.weight": To("nextn.hnorm.weight"),
    "embed_tokens.weight": To("nextn.embed_tokens.weight", optional=True),
    "shared_head.norm.weight": To("nextn.shared_head_norm.weight", optional=True),
    "shared_head.head.weight": To("nextn.shared_head_head.weight", optional=True),
}


@register_family
class Glm4Moe(Family):
    """Dense layers first, then experts."""

    arch = "glm4moe"
    hf = ("Glm4MoeForCausalLM",)
    model_types = ("glm4_moe",)
    defaults: ClassVar[dict[str, Any]] = {"partial_rotary_factor": 0.5}
    nextn = True

    def keys(self) -> Keys:
        """Experts. Raises ModelError for experts in groups, which are not computed."""
        c = self.c
        if c.integer("n_group", default=1) != 1:
            raise c.fault("n_group", "1", c.get("n_group"))
        share = float(c.rope.get("partial_rotary_factor", 0.5))
        return super().keys() | {
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "rope.dimension_count": int(self.head_dim * share),
            "expert_feed_forward_length": c.integer("moe_intermediate_size"),
            "expert_shared_count": c.integer("n_shared_experts"),
            "leading_dense_block_count": c.integer("first_k_dense_replace"),
            "expert_gating_func": SIGMOID,
            "expert_weights_scale": c.number("routed_scaling_factor"),
            "expert_weights_norm": c.flag("norm_topk_prob"),
        }

    def block(self, i: int, has: Has) -> Table:
        """A layer, or an MTP block."""
        table: Table = {**PRE_NORMS, **ATTENTION}
        table["post_attention_layernorm.weight"] = To("post_attention_norm.weight")
        if self.c.flag("use_qk_norm", default=False):
            table |= QK_NORMS
        table |= self._feed_forward(has) if i >= self.c.integer("first_k_dense_replace") else FFN
        return table | MTP if i >= self.n_layer else table

    def _feed_forward(self, has: Has) -> Table:
        return experts(has) | {
            "mlp.gate.e_score_correction_bias": To("exp_probs_b.bias"),
            "mlp.shared_experts.gate_proj.weight": To("ffn_gate_shexp.weight"),
            "mlp.shared_experts.up_proj.weight": To("ffn_up_shexp.weight"),
            "mlp.shared_experts.down_proj.weight": To("ffn_down_shexp.weight"),
        }
