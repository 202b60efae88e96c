"""Checkpoints of Granite 4 with Mamba-2 layers."""

from __future__ import annotations

import math

from ..family import ATTENTION, PRE_NORMS, Family, Has, Keys, Table, To, register_family
from ..transforms import SQUEEZE, Rows, Whole, interleaved
from .qwen35 import rates

# Of these an attending layer of a checkpoint is called one.
ATTENDS = ("attention", "full_attention")
COLUMN = Whole(lambda x: x.reshape(-1, 1), lambda shape: (shape[0], 1))


@register_family
class GraniteHybrid(Family):
    """Gate and up of a feed-forward part lie one below the other, experts' too. Without experts the
    shared one is the dense block."""

    arch = "granitehybrid"
    hf = ("GraniteMoeHybridForCausalLM",)
    model_types = ("granitemoehybrid",)

    def keys(self) -> Keys:
        """Multipliers, sizes of the scan, which layers attend. Raises ModelError for settings that
        a file has no place for."""
        c = self.c
        self._check()
        heads, kv = c.integer("mamba_n_heads"), c.integer("num_key_value_heads")
        experts = c.integer("num_local_experts", default=0)
        shared = c.integer("shared_intermediate_size")
        own: Keys = {
            "attention.head_count_kv": [kv if a else 0 for a in self._attends()],
            "rope.scaling.finetuned": c.string("position_embedding_type", default="") == "rope",
            "rope.dimension_count": self.head_dim,
            "ssm.conv_kernel": c.integer("mamba_d_conv"),
            "ssm.state_size": c.integer("mamba_d_state"),
            "ssm.group_count": c.integer("mamba_n_groups"),
            "ssm.inner_size": c.integer("mamba_expand", default=2) * c.integer("hidden_size"),
            "ssm.time_step_rank": heads,
        }
        for name, key in (
            ("attention_multiplier", "attention.scale"),
            ("embedding_multiplier", "embedding_scale"),
            ("residual_multiplier", "residual_scale"),
            ("logits_scaling", "logit_scale"),
        ):
            own[key] = c.number(name, default=1.0)
        if experts:
            own["expert_shared_feed_forward_length"] = shared
        else:
            own["feed_forward_length"] = shared
        return super().keys() | own

    def _check(self) -> None:
        c = self.c
        limits = c.items("time_step_limit", default=[0.0])
        # An infinite one is written as an object.
        limited = any(isinstance(n, (int, float)) and 0 < n < math.inf for n in limits)
        for name, plain, wrong in (
            ("mamba_proj_bias", "false", c.flag("mamba_proj_bias", default=False)),
            ("hidden_act", "silu", c.string("hidden_act", default="silu") != "silu"),
            ("time_step_limit", "[0, Infinity]", limited),
        ):
            if wrong:
                raise c.fault(name, f"{plain}, which is what is computed", c.get(name))

    def _attends(self) -> list[bool]:
        kinds = self.c.items("layer_types", "layers_block_type", count=self.n_layer)
        return [kind in ATTENDS for kind in kinds]

    def block(self, i: int, has: Has) -> Table:
        """A layer of either kind."""
        return PRE_NORMS | (self._attention() if self._attends()[i] else self._mamba()) | _ffn(has)

    def _attention(self) -> Table:
        c, table = self.c, dict(ATTENTION)
        heads = {"q": c.integer("num_attention_heads"), "k": c.integer("num_key_value_heads")}
        for name, n in heads.items():
            for end in ("weight", "bias"):
                to = To(f"attn_{name}.{end}", interleaved(n), optional=end == "bias")
                table[f"self_attn.{name}_proj.{end}"] = to
        return table

    def _mamba(self) -> Table:
        groups, b = self.c.integer("mamba_n_groups"), "mamba."
        grouped = Whole(lambda x: x.reshape(groups, -1), lambda s: (groups, s[0] // groups))
        decay = Whole(lambda x: rates(x).reshape(-1, 1), COLUMN.to)
        return {
            f"{b}in_proj.weight": To("ssm_in.weight"),
            f"{b}conv1d.weight": To("ssm_conv1d.weight", SQUEEZE),
            f"{b}conv1d.bias": To("ssm_conv1d.bias", optional=True),
            f"{b}dt_bias": To("ssm_dt.bias"),
            f"{b}A_log": To("ssm_a", decay, kind="f32"),
            f"{b}D": To("ssm_d", COLUMN, kind="f32"),
            f"{b}norm.weight": To("ssm_norm.weight", grouped),
            f"{b}out_proj.weight": To("ssm_out.weight"),
        }


def _ffn(has: Has) -> Table:
    """The shared expert, and the others where there are any."""
    shared, moe = "shared_mlp.", "block_sparse_moe."
    experts = has(f"{moe}router.layer.weight") or has(f"{moe}router.weight")
    end = "_shexp" if experts else ""
    table: Table = {
        f"{shared}input_linear.weight": (
            To(f"ffn_gate{end}.weight", Rows(0, 2)),
            To(f"ffn_up{end}.weight", Rows(1, 2)),
        ),
        f"{shared}output_linear.weight": To(f"ffn_down{end}.weight"),
    }
    if not experts:
        return table
    return table | {
        f"{moe}router.layer.weight": To("ffn_gate_inp.weight"),
        f"{moe}input_linear.weight": (
            To("ffn_gate_exps.weight", Rows(0, 2, axis=1)),
            To("ffn_up_exps.weight", Rows(1, 2, axis=1)),
        ),
        f"{moe}output_linear.weight": To("ffn_down_exps.weight"),
    }
