"""gpt-oss: windows in every second layer, sinks, and experts with biases and a limited SwiGLU."""

from __future__ import annotations

from dataclasses import replace

from ..architecture import register_architecture
from ..blocks import AttentionShape, Rope, attention_shape
from ..gguf import GgufFile
from ..hparams import read_count
from ..moe import Mixture, read_moe


@register_architecture
class GptOss(Mixture):
    """gpt-oss 20B and 120B. Source: OpenAI 2025, arXiv 2508.10925."""

    name = "gpt-oss"
    ffn_norm = "post_attention_norm.weight"

    def read(self, file: GgufFile) -> None:
        """The window, the experts."""
        hp = self.hp
        self.rope = Rope("neox", hp.n_rot, hp.rope_base, hp.rope_scaling)
        self.window = read_count(file, "gpt-oss.attention.sliding_window", 1, 2**31 - 1)
        m = read_moe(file, self.name, hp.n_layer, shared=False)
        # A softmax over the chosen experts alone is one over all of them, normalised.
        self.experts = replace(m, bias=True, act="oai")

    def attention_shape(self, layer: int) -> AttentionShape:
        """Layers 0, 2, ... have the window."""
        shape = attention_shape(self.hp, layer, self.rope, qk_norm=False, bias=True, sinks=True)
        return replace(shape, window=self.window if layer % 2 == 0 else 0)
