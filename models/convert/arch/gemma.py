"""Checkpoints of Gemma 2 and Gemma 3, of the latter the text model of all sizes."""

from __future__ import annotations

from typing import Any, ClassVar

from ..family import ATTENTION, FFN, Family, Has, Keys, Table, To, register_family
from ..rotary import number
from ..transforms import PLUS_ONE

NORMS = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
}


@register_family
class Gemma2(Family):
    """Norms are published less 1; the head is the embedding."""

    arch = "gemma2"
    hf: ClassVar[tuple[str, ...]] = ("Gemma2ForCausalLM",)
    model_types: ClassVar[tuple[str, ...]] = ("gemma2",)
    defaults: ClassVar[dict[str, Any]] = {"tie_word_embeddings": True}
    period = 2

    def keys(self) -> Keys:
        """Window and its pattern, caps, the scale of queries."""
        c = self.c
        found = super().keys() | {
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.sliding_window": c.integer("sliding_window"),
        }
        usual = [i % self.period < self.period - 1 for i in range(self.n_layer)]
        kinds = c.items("layer_types", default=None, count=self.n_layer)
        slides = usual if kinds is None else [kind == "sliding_attention" for kind in kinds]
        if slides != usual:
            found["attention.sliding_window_pattern"] = slides
        for name in ("attn_logit_softcapping", "final_logit_softcapping"):
            if c.get(name) is not None:
                found[name] = c.number(name)
        queries = c.number("query_pre_attn_scalar", default=float(self.head_dim))
        if queries != self.head_dim:
            found["attention.scale"] = queries**-0.5
        return found

    def ends(self) -> Table:
        """With the norm's 1."""
        return super().ends() | {"norm.weight": To("output_norm.weight", PLUS_ONE)}

    def block(self, i: int, has: Has) -> Table:
        """Four norms."""
        norms = {part: To(name, PLUS_ONE) for part, name in NORMS.items()}
        return norms | ATTENTION | FFN


@register_family
class Gemma3(Gemma2):
    """Norms on heads, and another rotary base where a window is."""

    arch = "gemma3"
    hf = ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")
    model_types = ("gemma3_text", "gemma3")
    period = 6
    # The configurations of the larger models leave out what they share with these.
    defaults: ClassVar[dict[str, Any]] = {
        "tie_word_embeddings": True,
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
    }

    def keys(self) -> Keys:
        """The base of layers with a window."""
        near = self.c.rope_of("sliding_attention")
        base = self.c.number("rope_local_base_freq")
        base = number(self.c, near, "rope_theta") if near else base
        return super().keys() | {"rope.freq_base_swa": base}

    def block(self, i: int, has: Has) -> Table:
        """With the heads' norms."""
        heads = {f"self_attn.{x}_norm.weight": To(f"attn_{x}_norm.weight", PLUS_ONE) for x in "qk"}
        return super().block(i, has) | heads
