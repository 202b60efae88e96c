"""Checkpoints of Phi-3, Phi-3.5 and Phi-4."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ..family import PRE_NORMS, Family, Has, Keys, Table, To, register_family
from ..rotary import number


@register_family
class Phi3(Family):
    """Fused matrices stay fused; factors of rotary frequencies become tensors."""

    arch = "phi3"
    hf = ("Phi3ForCausalLM",)
    model_types = ("phi3",)

    def keys(self) -> Keys:
        """Rotated elements, the context of pre-training, the window."""
        c, rope = self.c, self.c.rope
        length = c.integer("max_position_embeddings")
        before = int(rope.get("original_max_position_embeddings", length))
        found = super().keys() | {
            "rope.dimension_count": self._n_rot,
            "rope.scaling.original_context_length": before,
            "attention.sliding_window": c.integer("sliding_window", default=0),
        }
        if rope.get("long_factor"):
            if rope.get("attention_factor") is not None:
                share = number(c, rope, "attention_factor")
            else:
                grown = float(rope.get("factor") or length / before)
                share = math.sqrt(1 + math.log(grown) / math.log(before)) if grown > 1 else 1.0
            found["rope.scaling.attn_factor"] = share
        return found

    @property
    def _n_rot(self) -> int:
        return int(self.head_dim * self.c.rope.get("partial_rotary_factor", 1.0))

    def block(self, i: int, has: Has) -> Table:
        """Queries, keys and values in one; gate and up in one."""
        return PRE_NORMS | {
            "self_attn.qkv_proj.weight": To("attn_qkv.weight"),
            "self_attn.o_proj.weight": To("attn_output.weight"),
            "mlp.gate_up_proj.weight": To("ffn_up.weight"),
            "mlp.down_proj.weight": To("ffn_down.weight"),
        }

    def extra(self) -> Iterator[tuple[str, np.ndarray]]:
        """Both kinds of factors. Raises ModelError for another number of them."""
        for kind in ("long", "short"):
            factors = self.c.rope.get(f"{kind}_factor")
            if factors is None:
                continue
            if len(factors) != self._n_rot // 2:
                want = f"{self._n_rot // 2} numbers"
                raise self.c.fault(f"rope_parameters.{kind}_factor", want, f"{len(factors)}")
            yield f"rope_factors_{kind}.weight", np.array(factors, np.float32)
