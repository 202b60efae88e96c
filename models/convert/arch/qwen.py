"""Checkpoints of Qwen2, Qwen2.5 and Qwen3, dense and mixture of experts."""

from __future__ import annotations

from ..family import (
    ATTENTION,
    FFN,
    PRE_NORMS,
    QK_NORMS,
    Family,
    Has,
    Keys,
    Table,
    experts,
    register_family,
)


@register_family
class Qwen2(Family):
    """Biases on queries, keys and values."""

    arch = "qwen2"
    hf = ("Qwen2ForCausalLM",)
    model_types = ("qwen2",)

    def keys(self) -> Keys:
        """Raises ModelError for windows, which files of this architecture do not have."""
        if self.c.flag("use_sliding_window", default=False):
            raise self.c.fault("use_sliding_window", "false", True)
        return super().keys()


@register_family
class Qwen3(Qwen2):
    """Norms on heads."""

    arch = "qwen3"
    hf = ("Qwen3ForCausalLM",)
    model_types = ("qwen3",)

    def block(self, i: int, has: Has) -> Table:
        """With the heads' norms."""
        return PRE_NORMS | ATTENTION | QK_NORMS | FFN


@register_family
class Qwen3Moe(Qwen3):
    """Experts in every block."""

    arch = "qwen3moe"
    hf = ("Qwen3MoeForCausalLM",)
    model_types = ("qwen3_moe",)
    mixture = True

    def keys(self) -> Keys:
        """Raises ModelError where some blocks have no experts, or their weights are not
        normalised: files of this architecture cannot tell."""
        c = self.c
        step = c.integer("decoder_sparse_step", default=1)
        if c.items("mlp_only_layers", default=None) or step != 1:
            raise c.fault("mlp_only_layers", "empty, and decoder_sparse_step 1", "others")
        if not c.flag("norm_topk_prob", default=False):
            raise c.fault("norm_topk_prob", "true", False)
        return super().keys() | {"expert_feed_forward_length": c.integer("moe_intermediate_size")}

    def block(self, i: int, has: Has) -> Table:
        """With experts."""
        return PRE_NORMS | ATTENTION | QK_NORMS | experts(has)
