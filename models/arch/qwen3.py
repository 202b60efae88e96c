"""qwen3: as llama, with half-split rotary pairs and a norm on every query and key head."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph import Value
from ..architecture import Architecture, Want, register_architecture
from ..blocks import Rope, attention, attention_shape, attention_wants, ffn, ffn_wants, norm
from ..gguf import GgufFile
from ..step import StepGraph


@register_architecture
class Qwen3(Architecture):
    """Dense Qwen3."""

    name = "qwen3"

    def read(self, file: GgufFile) -> None:
        """Only the rotary kind is its own."""
        self.rope = Rope("neox", self.hp.n_rot, self.hp.rope_base, self.hp.rope_scaling)

    def wants(self) -> Iterator[Want]:
        """Tensor names and shapes."""
        hp = self.hp
        yield from self.common_wants()
        for i in range(hp.n_layer):
            yield Want(f"blk.{i}.attn_norm.weight", (hp.n_embd,))
            yield from attention_wants(i, hp.n_embd, attention_shape(hp, i, self.rope))
            yield Want(f"blk.{i}.ffn_norm.weight", (hp.n_embd,))
            yield from ffn_wants(i, hp.n_embd, hp.n_ff[i])

    def trunk(self, s: StepGraph, x: Value) -> Value:
        """All layers."""
        g, hp = s.g, self.hp
        for i in range(hp.n_layer):
            with g.scope(f"blk.{i}"):
                h = norm(s, x, f"blk.{i}.attn_norm.weight", hp.eps)
                mixed = attention(s, i, h, attention_shape(hp, i, self.rope))
                x = g.add(x, mixed, name="attn_residual")
                h = norm(s, x, f"blk.{i}.ffn_norm.weight", hp.eps)
                x = g.add(x, ffn(s, i, h), name="ffn_residual")
        return x
