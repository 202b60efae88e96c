"""Checkpoints of llama models: Llama 2 and 3, Mistral, Mixtral; and of SmolLM3."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from ..family import (
    ATTENTION,
    FFN,
    NUMBERED,
    PRE_NORMS,
    Family,
    Has,
    Keys,
    Table,
    experts,
    linear,
    register_family,
)
from ..rotary import llama3_factors
from ..transforms import interleaved


@register_family
class Llama(Family):
    """Rows of queries and keys go from half-split rotary pairs to neighbours."""

    arch = "llama"
    hf: ClassVar[tuple[str, ...]] = ("LlamaForCausalLM", "MistralForCausalLM")
    model_types: ClassVar[tuple[str, ...]] = ("llama", "mistral")

    def keys(self) -> Keys:
        """The common ones, and the size of the vocabulary."""
        own = {"vocab_size": self.c.integer("vocab_size"), "rope.dimension_count": self.head_dim}
        window = self.c.integer("sliding_window", default=0)
        if window:
            own["attention.sliding_window"] = window
        return super().keys() | own

    def block(self, i: int, has: Has) -> Table:
        """The plain transformer's."""
        return PRE_NORMS | self.attention() | FFN

    def attention(self) -> Table:
        """Queries and keys as they are rotated."""
        heads = self.c.integer("num_attention_heads")
        shared = self.c.integer("num_key_value_heads", default=heads)
        rotated = {
            **linear("self_attn.q_proj", "attn_q", interleaved(heads)),
            **linear("self_attn.k_proj", "attn_k", interleaved(shared)),
        }
        return ATTENTION | rotated

    def extra(self) -> Iterator[tuple[str, np.ndarray]]:
        """Llama 3's frequency factors."""
        factors = llama3_factors(self.c, self.head_dim)
        if factors is not None:
            yield "rope_freqs.weight", factors


@register_family
class Mixtral(Llama):
    """Experts in every block."""

    hf = ("MixtralForCausalLM",)
    model_types = ("mixtral",)

    def block(self, i: int, has: Has) -> Table:
        """Experts, as the authors or as transformers call them."""
        if not has("block_sparse_moe.gate.weight"):
            return PRE_NORMS | self.attention() | experts(has)
        return PRE_NORMS | self.attention() | experts(has, "block_sparse_moe.", NUMBERED)


@register_family
class SmolLm3(Llama):
    """Every fourth layer rotates nothing."""

    arch = "smollm3"
    hf = ("SmolLM3ForCausalLM",)
    model_types = ("smollm3",)

    def keys(self) -> Keys:
        """Raises ModelError for other layers without positions, which the file could not tell."""
        rotates = self.c.items("no_rope_layers", default=None)
        if rotates is not None and rotates != [int((i + 1) % 4 != 0) for i in range(self.n_layer)]:
            raise self.c.fault(
                "no_rope_layers", "0 for every fourth layer and 1 for others", rotates
            )
        if self.c.flag("use_sliding_window", default=False):
            raise self.c.fault("use_sliding_window", "false", True)
        found = super().keys()
        found.pop("attention.sliding_window", None)
        return found
