"""gemma3: sliding and global attention layers, norms before and after each block, GeGLU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from ...graph import Value
from ...graph.errors import ModelError
from ..architecture import Architecture, Want, register_architecture
from ..blocks import (
    AttentionShape,
    Rope,
    attention,
    attention_memories,
    attention_shape,
    attention_wants,
    ffn,
    ffn_wants,
    norm,
)
from ..gguf import INT_KINDS, GgufFile
from ..hparams import read_optional, read_positive
from ..memories import MemorySpec
from ..step import StepGraph


@register_architecture
class Gemma3(Architecture):
    """Text model of Gemma 3; norm weights in the file already include the +1."""

    name = "gemma3"
    period = 6  # every so many layers one sees all, where the file names no pattern
    layers_of_27b = 62

    def read(self, file: GgufFile) -> None:
        """Window, its layer pattern, the two rotary bases, the logit cap."""
        hp = self.hp
        self.window = file.get_u32(f"{self.name}.attention.sliding_window")
        self.sliding = self._pattern(file)
        self.wide = Rope("neox", hp.n_rot, hp.rope_base, hp.rope_scaling)
        near = read_positive(file, f"{self.name}.rope.freq_base_swa", 10000.0, above=1.0)
        self.near = Rope("neox", hp.n_rot, near)
        self.cap = read_optional(file, f"{self.name}.final_logit_softcapping")
        # The largest model scales queries by its embedding's share of a head, not by the head size,
        # and files need not say so.
        self.scale = hp.attention_scale
        if hp.n_layer == self.layers_of_27b and f"{self.name}.attention.scale" not in file.metadata:
            self.scale = 1.0 / math.sqrt(hp.n_embd / hp.n_head[0])

    def _pattern(self, file: GgufFile) -> list[bool]:
        key, n = f"{self.name}.attention.sliding_window_pattern", self.hp.n_layer
        if key in file.metadata and file.value_type(key).startswith("array"):
            return [bool(v) for v in file.get_array(key, INT_KINDS, min_len=n, max_len=n)]
        period = file.get_u32(key, self.period)
        if period < 1:
            raise ModelError(f"{file.path}: {key} should be at least 1, got {period}")
        return [i % period < period - 1 for i in range(n)]

    def attention_shape(self, layer: int) -> AttentionShape:
        """A layer's attention."""
        near = self.sliding[layer]
        shape = attention_shape(self.hp, layer, self.near if near else self.wide)
        return replace(shape, window=self.window if near else 0, scale=self.scale)

    def memories(self) -> tuple[MemorySpec, ...]:
        """Global and sliding layers."""
        return attention_memories({i: self.attention_shape(i) for i in range(self.hp.n_layer)})

    def wants(self) -> Iterator[Want]:
        """Tensor names and shapes."""
        hp = self.hp
        yield from self.common_wants()
        for i in range(hp.n_layer):
            yield from attention_wants(i, hp.n_embd, self.attention_shape(i))
            yield from ffn_wants(i, hp.n_embd, hp.n_ff[i])
            for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
                yield Want(f"blk.{i}.{name}.weight", (hp.n_embd,))

    def embed(self, s: StepGraph) -> Value:
        """Embeddings scaled by sqrt(n_embd)."""
        return s.g.scale(super().embed(s), factor=math.sqrt(self.hp.n_embd), name="embed_scale")

    def trunk(self, s: StepGraph, x: Value) -> Value:
        """All layers."""
        g, hp = s.g, self.hp
        for i in range(hp.n_layer):
            b = f"blk.{i}."
            with g.scope(f"blk.{i}"):
                h = norm(s, x, b + "attn_norm.weight", hp.eps)
                mixed = attention(s, i, h, self.attention_shape(i))
                mixed = norm(s, mixed, b + "post_attention_norm.weight", hp.eps)
                x = g.add(x, mixed, name="attn_residual")
                h = ffn(s, i, norm(s, x, b + "ffn_norm.weight", hp.eps), act="gelu")
                x = g.add(x, norm(s, h, b + "post_ffw_norm.weight", hp.eps), name="ffn_residual")
        return x

    def head(self, s: StepGraph, h: Value) -> Value:
        """Logits, softly capped where the file says so: c * tanh(logits / c)."""
        logits = super().head(s, h)
        if self.cap > 0:
            g = s.g
            logits = g.scale(g.tanh(g.scale(logits, factor=1 / self.cap)), factor=self.cap)
        return logits
