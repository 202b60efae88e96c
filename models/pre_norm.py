"""The plain transformer as a base class: norms before attention and before feed-forward."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

from ..graph import Value
from .architecture import Architecture, Want
from .blocks import (
    AttentionShape,
    attention,
    attention_memories,
    attention_wants,
    ffn,
    ffn_wants,
    norm,
    scaled,
)
from .memories import MemorySpec
from .step import StepGraph


class PreNorm(Architecture):
    """x += attention(norm(x)); x += feed_forward(norm(x)).

    ffn_norm: the name of the second norm, behind `blk.N.`; residual_scale: of what is added."""

    ffn_norm = "ffn_norm.weight"
    residual_scale = 1.0

    @abstractmethod
    def attention_shape(self, layer: int) -> AttentionShape:
        """A layer's attention."""

    def mix_wants(self, layer: int) -> Iterator[Want]:
        """The tensors of what mixes a layer's tokens."""
        return attention_wants(layer, self.hp.n_embd, self.attention_shape(layer))

    def mix(self, s: StepGraph, layer: int, h: Value) -> Value:
        """What mixes a layer's tokens. h: [N, n_embd], normalised; returns the same."""
        return attention(s, layer, h, self.attention_shape(layer))

    def ffn_wants(self, layer: int) -> Iterator[Want]:
        """The tensors of a layer's feed-forward part."""
        return ffn_wants(layer, self.hp.n_embd, self.hp.n_ff[layer])

    def ffn(self, s: StepGraph, layer: int, h: Value) -> Value:
        """A layer's feed-forward part. h: [N, n_embd], normalised; returns the same."""
        return ffn(s, layer, h)

    def wants(self) -> Iterator[Want]:
        """Tensor names and shapes."""
        yield from self.common_wants()
        for i in range(self.hp.n_layer):
            yield from self.layer_wants(i)

    def layer_wants(self, i: int) -> Iterator[Want]:
        """The tensors of a layer."""
        n = self.hp.n_embd
        yield Want(f"blk.{i}.attn_norm.weight", (n,))
        yield from self.mix_wants(i)
        yield Want(f"blk.{i}.{self.ffn_norm}", (n,))
        yield from self.ffn_wants(i)

    def trunk(self, s: StepGraph, x: Value) -> Value:
        """All layers."""
        for i in range(self.hp.n_layer):
            x = self.layer(s, i, x)
        return x

    def layer(self, s: StepGraph, i: int, x: Value) -> Value:
        """One layer. x: [N, n_embd], the residual stream; returns the same."""
        g, eps = s.g, self.hp.eps
        with g.scope(f"blk.{i}"):
            h = norm(s, x, f"blk.{i}.attn_norm.weight", eps)
            mixed = scaled(s, self.mix(s, i, h), self.residual_scale, "residual_scale")
            x = g.add(x, mixed, name="attn_residual")
            h = norm(s, x, f"blk.{i}.{self.ffn_norm}", eps)
            y = scaled(s, self.ffn(s, i, h), self.residual_scale, "residual_scale")
            return g.add(x, y, name="ffn_residual")

    def memories(self) -> tuple[MemorySpec, ...]:
        """Every layer attends."""
        return attention_memories({i: self.attention_shape(i) for i in range(self.hp.n_layer)})
