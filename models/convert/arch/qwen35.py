"""Checkpoints of Qwen3.5 and 3.6, dense and mixture of experts, MTP block included."""

from __future__ import annotations

import re
from typing import ClassVar

import numpy as np

from ..checkpoint import Array
from ..family import ATTENTION, FFN, QK_NORMS, Family, Has, Keys, Place, Table, To, register_family
from ..family import experts as expert_tensors
from ..transforms import FLAT, PLUS_ONE, SAME, SQUEEZE, Whole, regrouped

SECTIONS = [11, 11, 10]  # what transformers takes where a configuration has none
# Of the block that predicts further tokens.
MTP = {"fc": "nextn.eh_proj", "norm": "nextn.shared_head_norm"}
MTP |= {"pre_fc_norm_embedding": "nextn.enorm", "pre_fc_norm_hidden": "nextn.hnorm"}
_MTP_LAYER = re.compile(r"mtp\.layers\.(\d+)\.(.+)")


@register_family
class Qwen35(Family):
    """A file orders value heads by their number among those of a key head, where a checkpoint has
    those of one key head side by side; norms are published less 1, that of the delta net aside."""

    arch = "qwen35"
    hf: ClassVar[tuple[str, ...]] = ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration")
    model_types: ClassVar[tuple[str, ...]] = ("qwen3_5_text", "qwen3_5")
    nextn = True

    def keys(self) -> Keys:
        """Delta-net sizes, rotary sections, which layers are recurrent."""
        c, rope = self.c, self.c.rope
        v_heads = c.integer("linear_num_value_heads")
        sections = [*rope.get("mrope_section", SECTIONS), 0, 0, 0, 0][:4]
        own: Keys = {
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "rope.dimension_sections": sections,
            "rope.dimension_count": int(self.head_dim * rope.get("partial_rotary_factor", 0.25)),
            "ssm.conv_kernel": c.integer("linear_conv_kernel_dim"),
            "ssm.state_size": c.integer("linear_key_head_dim"),
            "ssm.group_count": c.integer("linear_num_key_heads"),
            "ssm.time_step_rank": v_heads,
            "ssm.inner_size": c.integer("linear_value_head_dim") * v_heads,
            "full_attention_interval": c.integer("full_attention_interval", default=4),
            "attention.recurrent_layers": self._recurrent() + [False] * self.n_mtp,
        }
        return super().keys() | own

    def _recurrent(self) -> list[bool]:
        kinds = self.c.items("layer_types", default=None, count=self.n_layer)
        if kinds is None:
            interval = self.c.integer("full_attention_interval", default=4)
            return [(i + 1) % interval != 0 for i in range(self.n_layer)]
        return [kind == "linear_attention" for kind in kinds]

    def place(self, name: str) -> Place | None:
        """MTP blocks behind the layers."""
        name = name.removeprefix("model.") if name.startswith("model.mtp.") else name
        layer = _MTP_LAYER.match(name)
        if layer:
            return self.within(self.n_layer + int(layer[1]), layer[2])
        if name.startswith("mtp."):
            return Place(self.n_layer, name)
        return super().place(name)

    def ends(self) -> Table:
        """With the norm's 1."""
        return super().ends() | {"norm.weight": To("output_norm.weight", PLUS_ONE)}

    def block(self, i: int, has: Has) -> Table:
        """A layer of either kind, or an MTP block."""
        table: Table = {
            "input_layernorm.weight": To("attn_norm.weight", PLUS_ONE),
            "post_attention_layernorm.weight": To("post_attention_norm.weight", PLUS_ONE),
        }
        recurrent = i < self.n_layer and self._recurrent()[i]
        table |= self.delta_net() if recurrent else ATTENTION | _plus_one(QK_NORMS)
        if i == self.n_layer:
            table |= {
                f"mtp.{part}.weight": To(f"{name}.weight", PLUS_ONE if "norm" in name else SAME)
                for part, name in MTP.items()
            }
        return table | self.feed_forward(has)

    def feed_forward(self, has: Has) -> Table:
        """The dense block."""
        return FFN

    def delta_net(self) -> Table:
        """A recurrent layer, its norms aside."""
        c = self.c
        k_heads, v_heads = c.integer("linear_num_key_heads"), c.integer("linear_num_value_heads")
        keys = 2 * k_heads * c.integer("linear_key_head_dim")
        each = v_heads // k_heads
        values = Whole(regrouped(k_heads, each))
        behind_keys = regrouped(k_heads, each, start=keys)
        b = "linear_attn."
        return {
            f"{b}in_proj_qkv.weight": To("attn_qkv.weight", Whole(behind_keys)),
            f"{b}in_proj_z.weight": To("attn_gate.weight", values),
            f"{b}in_proj_a.weight": To("ssm_alpha.weight", values),
            f"{b}in_proj_b.weight": To("ssm_beta.weight", values),
            f"{b}conv1d.weight": To(
                "ssm_conv1d.weight", Whole(lambda x: behind_keys(SQUEEZE.change(x)), SQUEEZE.to)
            ),
            f"{b}dt_bias": To("ssm_dt.bias", values),
            f"{b}A_log": To("ssm_a", Whole(lambda x: rates(values.change(x)))),
            f"{b}norm.weight": To("ssm_norm.weight"),
            f"{b}out_proj.weight": To("ssm_out.weight", Whole(regrouped(k_heads, each, axis=1))),
        }


@register_family
class Qwen35Moe(Qwen35):
    """Experts, and one that all tokens share, behind a gate."""

    arch = "qwen35moe"
    hf: ClassVar[tuple[str, ...]] = ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration")
    model_types: ClassVar[tuple[str, ...]] = ("qwen3_5_moe_text", "qwen3_5_moe")
    mixture = True

    def keys(self) -> Keys:
        """Sizes of experts."""
        c = self.c
        return super().keys() | {
            "expert_feed_forward_length": c.integer("moe_intermediate_size"),
            "expert_shared_feed_forward_length": c.integer("shared_expert_intermediate_size"),
        }

    def feed_forward(self, has: Has) -> Table:
        """The mixture."""
        return expert_tensors(has) | {
            "mlp.shared_expert_gate.weight": To("ffn_gate_inp_shexp.weight", FLAT),
            "mlp.shared_expert.gate_proj.weight": To("ffn_gate_shexp.weight"),
            "mlp.shared_expert.up_proj.weight": To("ffn_up_shexp.weight"),
            "mlp.shared_expert.down_proj.weight": To("ffn_down_shexp.weight"),
        }


def rates(logs: Array) -> Array:
    """-exp(logs), rounded once."""
    return (-np.exp(logs.astype(np.float64))).astype(np.float32)


def _plus_one(table: Table) -> Table:
    return {part: To(to.name, PLUS_ONE) for part, to in table.items() if isinstance(to, To)}
