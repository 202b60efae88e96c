"""phi3: one matrix for queries, keys and values, one for gate and up, factors for long texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...graph import Value
from ..architecture import Want, register_architecture
from ..blocks import AttentionShape, Rope, attention, attention_shape
from ..gguf import GgufFile
from ..hparams import read_count
from ..pre_norm import PreNorm
from ..step import PAGE, StepGraph

FACTORS = ("rope_factors_long.weight", "rope_factors_short.weight")


@register_architecture
class Phi3(PreNorm):
    """Phi-3, Phi-3.5 and Phi-4. Sessions longer than the context of pre-training divide the rotary
    frequencies by the long factors, others by the short ones.

    Source: Ding et al. 2024, LongRoPE, arXiv 2402.13753."""

    name = "phi3"

    def read(self, file: GgufFile) -> None:
        """The context of pre-training, the window of all layers."""
        hp = self.hp
        key = "phi3.rope.scaling.original_context_length"
        self.n_ctx_orig = read_count(file, key, 1, (1 << 32) - 1, hp.n_ctx_train)
        self.window = read_count(file, "phi3.attention.sliding_window", 0, 2**31 - 1, 0)
        self.rope = Rope("neox", hp.n_rot, hp.rope_base, hp.rope_scaling)

    def wants(self) -> Iterator[Want]:
        """Tensor names and shapes."""
        yield from super().wants()
        for name in FACTORS:
            yield Want(name, (self.hp.n_rot // 2,), optional=True)

    def ffn_wants(self, layer: int) -> Iterator[Want]:
        """Gate and up lie in one tensor, the gate first."""
        n, n_ff = self.hp.n_embd, self.hp.n_ff[layer]
        yield Want(f"blk.{layer}.ffn_up.weight", (2 * n_ff, n))
        yield Want(f"blk.{layer}.ffn_down.weight", (n, n_ff))

    def ffn(self, s: StepGraph, layer: int, h: Value) -> Value:
        """SwiGLU."""
        g, b, n_ff = s.g, f"blk.{layer}.", self.hp.n_ff[layer]
        both = g.mul_mat(h, s.w(b + "ffn_up.weight"), name="ffn_up")
        gate = g.view(both, axis=1, start=0, stop=n_ff)
        up = g.view(both, axis=1, start=n_ff, stop=2 * n_ff)
        inner = g.swiglu(gate, up, name="ffn_act")
        return g.mul_mat(inner, s.w(b + "ffn_down.weight"), name="ffn_down")

    def attention_shape(self, layer: int) -> AttentionShape:
        """Fused, without norms on heads."""
        shape = attention_shape(self.hp, layer, self.rope, qk_norm=False, fused=True)
        return replace(shape, window=self.window)

    def mix(self, s: StepGraph, layer: int, h: Value) -> Value:
        """Attention with the factors for contexts of this length."""
        long = s.capacity.pages_per_seq * PAGE > self.n_ctx_orig
        shape = self.attention_shape(layer)
        rope = replace(shape.rope, factors=FACTORS[0 if long else 1])
        return attention(s, layer, h, replace(shape, rope=rope))
