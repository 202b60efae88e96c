"""gpt-oss: windows in every second layer, sinks, and experts with biases and a limited SwiGLU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...graph import Value
from ...graph.errors import ModelError
from ..architecture import Want, register_architecture
from ..blocks import AttentionShape, Rope, attention_shape
from ..gguf import GgufFile
from ..moe import MoeShape, moe, moe_wants, read_moe
from ..pre_norm import PreNorm
from ..step import StepGraph


@register_architecture
class GptOss(PreNorm):
    """gpt-oss 20B and 120B. Source: OpenAI 2025, arXiv 2508.10925."""

    name = "gpt-oss"
    ffn_norm = "post_attention_norm.weight"

    def read(self, file: GgufFile) -> None:
        """The window, the experts."""
        hp = self.hp
        self.rope = Rope("neox", hp.n_rot, hp.rope_base, hp.rope_scaling)
        key = "gpt-oss.attention.sliding_window"
        self.window = file.get_u32(key)
        if self.window < 1:
            raise ModelError(f"{file.path}: {key} should be 1 or more, got {self.window}")
        m = read_moe(file, self.name, hp.n_layer, shared=False)
        self.experts: MoeShape = replace(m, bias=True, act="oai")

    def ffn_wants(self, layer: int) -> Iterator[Want]:
        """Router and experts."""
        return moe_wants(layer, self.hp.n_embd, self.experts, fused=False)

    def ffn(self, s: StepGraph, layer: int, h: Value) -> Value:
        """The mixture: the softmax goes over the chosen experts, as over all and normalised."""
        return moe(s, layer, h, self.experts)

    def attention_shape(self, layer: int) -> AttentionShape:
        """Layers 0, 2, ... have the window."""
        shape = attention_shape(self.hp, layer, self.rope, qk_norm=False, bias=True, sinks=True)
        return replace(shape, window=self.window if layer % 2 == 0 else 0)
