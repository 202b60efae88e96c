"""Checkpoints of llama models: Llama 2 and 3, and Mistral."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..family import ATTENTION, FFN, PRE_NORMS, Family, Has, Keys, Table, linear, register_family
from ..rotary import llama3_factors
from ..transforms import interleaved


@register_family
class Llama(Family):
    """Rows of queries and keys go from half-split rotary pairs to neighbours."""

    arch = "llama"
    hf = ("LlamaForCausalLM", "MistralForCausalLM")
    model_types = ("llama", "mistral")

    def keys(self) -> Keys:
        """The common ones, and the size of the vocabulary."""
        own = {"vocab_size": self.c.integer("vocab_size"), "rope.dimension_count": self.head_dim}
        return super().keys() | own

    def block(self, i: int, has: Has) -> Table:
        """Queries and keys as rotated."""
        heads = self.c.integer("num_attention_heads")
        shared = self.c.integer("num_key_value_heads", default=heads)
        rotated = {
            **linear("self_attn.q_proj", "attn_q", interleaved(heads)),
            **linear("self_attn.k_proj", "attn_k", interleaved(shared)),
        }
        return PRE_NORMS | ATTENTION | rotated | FFN

    def extra(self) -> Iterator[tuple[str, np.ndarray]]:
        """Llama 3's frequency factors."""
        factors = llama3_factors(self.c, self.head_dim)
        if factors is not None:
            yield "rope_freqs.weight", factors
