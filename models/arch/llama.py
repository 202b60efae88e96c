"""llama: pre-norm attention and SwiGLU, interleaved rotary pairs."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph import Value
from ...graph.errors import ModelError
from ..architecture import Architecture, Want, register_architecture
from ..blocks import Rope, attention, attention_shape, attention_wants, ffn, ffn_wants, norm
from ..gguf import GgufFile
from ..step import StepGraph


@register_architecture
class Llama(Architecture):
    """Llama 2 and 3, Mistral and their kin; dense models."""

    name = "llama"

    def read(self, file: GgufFile) -> None:
        """Refuse mixtures of experts."""
        experts = file.get_u32("llama.expert_count", 0)
        if experts:
            raise ModelError(f"{file.path}: llama.expert_count should be 0 (dense), got {experts}")
        hp = self.hp
        self.rope = Rope(
            "norm", hp.n_rot, hp.rope_base, hp.rope_scaling, factors="rope_freqs.weight"
        )

    def wants(self) -> Iterator[Want]:
        """Tensor names and shapes."""
        hp = self.hp
        yield from self.common_wants()
        yield Want("rope_freqs.weight", (hp.n_rot // 2,), optional=True)
        for i in range(hp.n_layer):
            shape = attention_shape(hp, i, self.rope, qk_norm=False, bias=True)
            yield Want(f"blk.{i}.attn_norm.weight", (hp.n_embd,))
            yield from attention_wants(i, hp.n_embd, shape)
            yield Want(f"blk.{i}.ffn_norm.weight", (hp.n_embd,))
            yield from ffn_wants(i, hp.n_embd, hp.n_ff[i])

    def trunk(self, s: StepGraph, x: Value) -> Value:
        """All layers."""
        g, hp = s.g, self.hp
        for i in range(hp.n_layer):
            with g.scope(f"blk.{i}"):
                shape = attention_shape(hp, i, self.rope, qk_norm=False, bias=True)
                h = norm(s, x, f"blk.{i}.attn_norm.weight", hp.eps)
                x = g.add(x, attention(s, i, h, shape), name="attn_residual")
                h = norm(s, x, f"blk.{i}.ffn_norm.weight", hp.eps)
                x = g.add(x, ffn(s, i, h), name="ffn_residual")
        return x
