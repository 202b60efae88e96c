"""Checkpoints of gpt-oss, whose experts are published in mxfp4."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..checkpoint import Array, Shape, Source
from ..family import ATTENTION, PRE_NORMS, Family, Has, Keys, Place, Table, To, register_family
from ..transforms import TRANSPOSE, Transform, Whole, swapped

BLOCK = 32  # elements of a block: 16 bytes of a checkpoint, and a scale beside them


@dataclass(frozen=True)
class Blocks(Transform):
    """mxfp4 from nibbles [E, rows, blocks, 16], an element and the next one in a byte, and scales
    [E, rows, blocks]: in a file the scale comes first, and element i shares a byte with i + 16.

    start, step: which rows."""

    start: int = 0
    step: int = 1

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """[E, rows, elements]."""
        if len(shapes) != 2 or shapes[0][:3] != shapes[1] or shapes[0][3:] != (BLOCK // 2,):
            raise ValueError(f"blocks and scales should have [E, M, K] and 16 bytes, got {shapes}")
        experts, rows, blocks = shapes[1]
        return experts, rows // self.step, blocks * BLOCK

    def pieces(self, sources: Sequence[Source]) -> Iterator[Array]:
        """Expert by expert, as bytes."""
        nibbles, scales = sources
        for i in range(nibbles.rows):
            q = nibbles.stored(i, i + 1)[0, self.start :: self.step]
            each = np.stack([q & 15, q >> 4], axis=-1).reshape(*q.shape[:2], BLOCK)
            packed = each[..., :16] | each[..., 16:] << 4
            scale = scales.stored(i, i + 1)[0, self.start :: self.step, :, None]
            yield np.concatenate([scale, packed], axis=-1).reshape(len(q), -1)


def rows_of(start: int) -> Whole:
    """Every second column of [E, in, 2 out], as [E, out, in]."""
    return Whole(
        lambda x: swapped(x[..., start::2]),
        lambda s: (s[0], s[2] // 2, s[1]),
    )


def bias_of(start: int) -> Whole:
    """Every second element of [E, 2 n]."""
    return Whole(lambda x: np.ascontiguousarray(x[:, start::2]), lambda s: (s[0], s[1] // 2))


@register_family
class GptOss(Family):
    """Gate and up of an expert alternate in one tensor."""

    arch = "gpt-oss"
    hf = ("GptOssForCausalLM",)
    model_types = ("gpt_oss",)

    def keys(self) -> Keys:
        """Window and experts. Raises ModelError for windows in other layers."""
        c = self.c
        usual = [("sliding_attention", "full_attention")[i % 2] for i in range(self.n_layer)]
        if c.items("layer_types", default=usual) != usual:
            raise c.fault("layer_types", "sliding_attention and full_attention in turns", "others")
        return super().keys() | {
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.sliding_window": c.integer("sliding_window"),
            "expert_feed_forward_length": c.integer("intermediate_size"),
        }

    def within(self, block: int, part: str) -> Place:
        """Nibbles and scales of a matrix belong together."""
        for number, end in enumerate(("_blocks", "_scales")):
            if part.endswith(end):
                return Place(block, part.removesuffix(end) + "_mxfp4", number)
        return super().within(block, part)

    def block(self, i: int, has: Has) -> Table:
        """Attention with sinks; experts, as blocks where the checkpoint has them so."""
        b = "mlp.experts."
        table: Table = {
            **PRE_NORMS,
            **ATTENTION,
            "post_attention_layernorm.weight": To("post_attention_norm.weight"),
            "self_attn.sinks": To("attn_sinks.weight"),
            "mlp.router.weight": To("ffn_gate_inp.weight"),
            "mlp.router.bias": To("ffn_gate_inp.bias"),
            f"{b}gate_up_proj_bias": (
                To("ffn_gate_exps.bias", bias_of(0)),
                To("ffn_up_exps.bias", bias_of(1)),
            ),
            f"{b}down_proj_bias": To("ffn_down_exps.bias"),
        }
        if has(f"{b}gate_up_proj_mxfp4"):
            return table | {
                f"{b}gate_up_proj_mxfp4": (
                    To("ffn_gate_exps.weight", Blocks(0, 2), "mxfp4"),
                    To("ffn_up_exps.weight", Blocks(1, 2), "mxfp4"),
                ),
                f"{b}down_proj_mxfp4": To("ffn_down_exps.weight", Blocks(), "mxfp4"),
            }
        return table | {
            f"{b}gate_up_proj": (
                To("ffn_gate_exps.weight", rows_of(0)),
                To("ffn_up_exps.weight", rows_of(1)),
            ),
            f"{b}down_proj": To("ffn_down_exps.weight", TRANSPOSE),
        }
