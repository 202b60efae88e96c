"""qwen2: as llama, with half-split rotary pairs and biases on queries, keys and values."""

from __future__ import annotations

from ..architecture import register_architecture
from ..blocks import AttentionShape, Rope, attention_shape
from ..gguf import GgufFile
from ..pre_norm import PreNorm


@register_architecture
class Qwen2(PreNorm):
    """Dense Qwen1.5, Qwen2 and Qwen2.5."""

    name = "qwen2"

    def read(self, file: GgufFile) -> None:
        """Only the rotary kind is its own."""
        self.rope = Rope("neox", self.hp.n_rot, self.hp.rope_base, self.hp.rope_scaling)

    def attention_shape(self, layer: int) -> AttentionShape:
        """Biases where the file has them."""
        return attention_shape(self.hp, layer, self.rope, qk_norm=False, bias=True)
