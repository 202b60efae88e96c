"""Checkpoints of Qwen3-Next, MTP block included."""

from __future__ import annotations

import numpy as np

from ..checkpoint import Array, Shape
from ..family import Keys, Table, To, register_family
from ..transforms import SQUEEZE, Each, Whole
from .qwen35 import Qwen35Moe, rates


@register_family
class Qwen3Next(Qwen35Moe):
    """Value heads stay in the checkpoint's order."""

    arch = "qwen3next"
    hf = ("Qwen3NextForCausalLM",)
    model_types = ("qwen3_next",)

    def keys(self) -> Keys:
        """Rotary positions of text alone."""
        found = super().keys()
        del found["rope.dimension_sections"]
        return found

    def delta_net(self) -> Table:
        """One projection holds, for each key head, its query, key, values and gates."""
        c, b = self.c, "linear_attn."
        groups, dim = c.integer("linear_num_key_heads"), c.integer("linear_key_head_dim")
        values = c.integer("linear_num_value_heads") // groups * c.integer("linear_value_head_dim")
        ends = [dim, 2 * dim, 2 * dim + values]

        def parts(x: Array) -> list[Array]:
            split = np.split(x.reshape(groups, -1, x.shape[1]), ends, axis=1)
            return [part.reshape(-1, x.shape[1]) for part in split]

        def rows(n: int) -> Whole:
            """The first n of the parts for 3, the last one for 1."""

            def change(x: Array) -> Array:
                return np.concatenate(parts(x)[:n] if n > 1 else parts(x)[-n:])

            def shape(s: Shape) -> Shape:
                return (groups * (ends[-1] if n > 1 else values), s[1])

            return Whole(change, shape)

        return {
            f"{b}in_proj_qkvz.weight": (
                To("attn_qkv.weight", rows(3)),
                To("attn_gate.weight", rows(1)),
            ),
            f"{b}in_proj_ba.weight": To("ssm_ba.weight"),
            f"{b}conv1d.weight": To("ssm_conv1d.weight", SQUEEZE),
            f"{b}dt_bias": To("ssm_dt.bias"),
            f"{b}A_log": To("ssm_a", Each(rates)),
            f"{b}norm.weight": To("ssm_norm.weight"),
            f"{b}out_proj.weight": To("ssm_out.weight"),
        }
