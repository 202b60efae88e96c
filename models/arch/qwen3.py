"""qwen3: as llama, with half-split rotary pairs and a norm on every query and key head."""

from __future__ import annotations

from ..architecture import register_architecture
from ..blocks import AttentionShape, Rope, attention_shape
from ..gguf import GgufFile
from ..pre_norm import PreNorm


@register_architecture
class Qwen3(PreNorm):
    """Dense Qwen3."""

    name = "qwen3"

    def read(self, file: GgufFile) -> None:
        """Only the rotary kind is its own."""
        self.rope = Rope("neox", self.hp.n_rot, self.hp.rope_base, self.hp.rope_scaling)

    def attention_shape(self, layer: int) -> AttentionShape:
        """Norms on heads, no biases."""
        return attention_shape(self.hp, layer, self.rope)
