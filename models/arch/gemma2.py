"""gemma2: as gemma3, without norms on heads, with capped attention scores and one rotary base."""

from __future__ import annotations

from dataclasses import replace

from ..architecture import register_architecture
from ..blocks import AttentionShape, Rope
from ..gguf import GgufFile
from ..hparams import read_optional, read_positive
from .gemma3 import Gemma3


@register_architecture
class Gemma2(Gemma3):
    """Every second layer sees all. Source: Gemma Team 2024, arXiv 2408.00118."""

    name = "gemma2"
    period = 2
    layers_of_27b = 46

    def read(self, file: GgufFile) -> None:
        """What gemma3 has, and the cap of scores."""
        super().read(file)
        near = read_positive(file, "gemma2.rope.freq_base_swa", self.hp.rope_base, above=1.0)
        self.near = Rope("neox", self.hp.n_rot, near, self.hp.rope_scaling)
        self.softcap = read_optional(file, "gemma2.attn_logit_softcapping")

    def attention_shape(self, layer: int) -> AttentionShape:
        """A layer's attention."""
        return replace(super().attention_shape(layer), qk_norm=False, softcap=self.softcap)
