"""smollm3: as llama, with every fourth layer without positions."""

from __future__ import annotations

from ..architecture import register_architecture
from ..blocks import AttentionShape, Rope, attention_shape
from ..gguf import GgufFile
from ..pre_norm import PreNorm

PERIOD = 4  # what every file of this architecture means; no key tells it


@register_architecture
class SmolLm3(PreNorm):
    """SmolLM3. Source: layers without rotation, Yang et al. 2025, arXiv 2501.18795."""

    name = "smollm3"

    def read(self, file: GgufFile) -> None:
        """Only the rotary kind is its own."""
        self.rope = Rope("norm", self.hp.n_rot, self.hp.rope_base, self.hp.rope_scaling)

    def attention_shape(self, layer: int) -> AttentionShape:
        """Layers 3, 7, ... rotate nothing."""
        rotates = (layer + 1) % PERIOD != 0
        rope = self.rope if rotates else Rope("norm", 0, self.hp.rope_base)
        return attention_shape(self.hp, layer, rope, qk_norm=False, bias=True)
