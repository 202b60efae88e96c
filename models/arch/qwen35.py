"""qwen35: three gated-delta-net layers for each gated full-attention layer, SwiGLU after each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...graph import Graph, TensorSpec, Value
from ...graph.errors import ModelError
from ..architecture import Want, register_architecture
from ..blocks import (
    Rope,
    attention,
    attention_memories,
    attention_shape,
    attention_wants,
    ffn,
    ffn_wants,
    norm,
)
from ..delta_net import DeltaNetShape, delta_net, delta_net_wants, read_delta_net, recur
from ..gguf import INT_KINDS, GgufFile
from ..memories import MemorySpec, Program, RecurrentSpec
from ..nextn import NextN
from ..step import Capacity, StepGraph, StepShape


@register_architecture
class Qwen35(NextN):
    """Dense Qwen3.5 / 3.6. Files may carry MTP blocks after the trunk."""

    name = "qwen35"

    def read(self, file: GgufFile) -> None:
        """Delta-net sizes, rotary sections, which layers are recurrent."""
        hp = self.hp
        self.delta: DeltaNetShape = read_delta_net(file, self.name, hp.eps, heads="tiled")
        if hp.head_dim_v != hp.head_dim_k:
            raise ModelError(
                f"{file.path}: {self.name}.attention.value_length should be key_length "
                f"{hp.head_dim_k}, got {hp.head_dim_v}"
            )
        key = f"{self.name}.rope.dimension_sections"
        sections = file.get_array(key, INT_KINDS, min_len=3, max_len=4)
        if min(sections) < 0 or not any(sections):
            raise ModelError(
                f"{file.path}: {key} should be counts, not all 0, got {sections.tolist()}"
            )
        self.rope = Rope(
            "imrope",
            hp.n_rot,
            hp.rope_base,
            hp.rope_scaling,
            sections=tuple(int(n) for n in sections) + (0,) * (4 - len(sections)),
        )
        self.recurrent = self._recurrent_layers(file)

    def _recurrent_layers(self, file: GgufFile) -> list[bool]:
        key, n = f"{self.name}.attention.recurrent_layers", self.hp.n_layer
        if key in file.metadata:
            flags = file.get_array(key, INT_KINDS, min_len=n, max_len=self.hp.n_layer_all)
            return [bool(f) for f in flags[:n]]
        key = f"{self.name}.full_attention_interval"
        interval = file.get_u32(key, 4)
        if interval < 1:
            raise ModelError(f"{file.path}: {key} should be 1 or more, got 0")
        return [(i + 1) % interval != 0 for i in range(n)]

    def wants(self) -> Iterator[Want]:
        """Tensor names and shapes, MTP blocks included."""
        hp = self.hp
        yield from self.common_wants()
        for i in range(hp.n_layer_all):
            yield Want(f"blk.{i}.attn_norm.weight", (hp.n_embd,))
            yield Want(f"blk.{i}.post_attention_norm.weight", (hp.n_embd,))
            yield from self.ffn_wants(i)
            if i < hp.n_layer and self.recurrent[i]:
                yield from delta_net_wants(i, hp.n_embd, self.delta)
            else:
                shape = attention_shape(hp, i, self.rope, gated=True)
                yield from attention_wants(i, hp.n_embd, shape)
        yield from self.nextn_wants()

    def ffn_wants(self, layer: int) -> Iterator[Want]:
        """The tensors of a block's feed-forward part."""
        return ffn_wants(layer, self.hp.n_embd, self.hp.n_ff[layer])

    def ffn(self, s: StepGraph, layer: int, h: Value) -> Value:
        """A block's feed-forward part. h: [N, n_embd], normalised; returns the same."""
        return ffn(s, layer, h)

    def trunk(self, s: StepGraph, x: Value) -> Value:
        """All trunk layers."""
        for i in range(self.hp.n_layer):
            x = self._block(s, i, x, recurrent=self.recurrent[i])
        return x

    def _block(self, s: StepGraph, i: int, x: Value, recurrent: bool) -> Value:
        g, hp = s.g, self.hp
        with g.scope(f"blk.{i}"):
            h = norm(s, x, f"blk.{i}.attn_norm.weight", hp.eps)
            if recurrent:
                mixed = delta_net(s, i, h, self.delta)
            else:
                mixed = attention(s, i, h, attention_shape(hp, i, self.rope, gated=True))
            x = g.add(x, mixed, name="attn_residual")
            h = norm(s, x, f"blk.{i}.post_attention_norm.weight", hp.eps)
            return g.add(x, self.ffn(s, i, h), name="ffn_residual")

    def memories(self) -> tuple[MemorySpec, ...]:
        """Attention and delta-net layers."""
        layers = range(self.hp.n_layer)
        attending = self._attention([i for i in layers if not self.recurrent[i]])
        recurrent = tuple(i for i in layers if self.recurrent[i])
        return (*attending, *([RecurrentSpec(recurrent, self.delta.memory)] if recurrent else []))

    def _attention(self, layers: Sequence[int]) -> tuple[MemorySpec, ...]:
        return attention_memories(
            {i: attention_shape(self.hp, i, self.rope, gated=True) for i in layers}
        )

    def programs(self) -> dict[str, Program]:
        """Also passes without tokens."""
        found = super().programs()
        if any(self.recurrent):
            recurrent = tuple(m for m in self.memories() if isinstance(m, RecurrentSpec))
            found["folds"] = Program(self.folds, recurrent)
        return found

    def folds(self, shape: StepShape, capacity: Capacity, weights: dict[str, TensorSpec]) -> Graph:
        """The recurrent layers without tokens: their operands are zeros that nobody reads."""
        s, d = StepGraph(f"{self.name} folds", shape, capacity, weights), self.delta
        u = s.g.constant(np.zeros((shape.n_tokens, d.channels), np.float32), "no_tokens")
        gates = s.g.constant(np.zeros((shape.n_tokens, d.v_heads), np.float32), "no_gates")
        for i in range(self.hp.n_layer):
            if self.recurrent[i]:
                with s.g.scope(f"blk.{i}"):
                    s.g.output(f"blk.{i}", recur(s, i, u, gates, gates, d))
        return s.g

    def nextn_block(self, s: StepGraph, layer: int, x: Value) -> Value:
        """A layer that attends."""
        return self._block(s, layer, x, recurrent=False)

    def nextn_memories(self) -> tuple[MemorySpec, ...]:
        """Keys and values."""
        return self._attention(range(self.hp.n_layer, self.hp.n_layer_all))
