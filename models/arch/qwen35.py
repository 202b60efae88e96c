"""qwen35: three gated-delta-net layers for each gated full-attention layer, SwiGLU after each."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph import Value
from ...graph.errors import ModelError
from ..architecture import Architecture, Want, register_architecture
from ..blocks import Rope, attention, attention_shape, attention_wants, ffn, ffn_wants, norm
from ..delta_net import DeltaNetShape, delta_net, delta_net_wants, read_delta_net
from ..gguf import INT_KINDS, GgufFile
from ..step import StepGraph


@register_architecture
class Qwen35(Architecture):
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
        for i in range(hp.n_layer, hp.n_layer_all):
            yield from self._mtp_wants(f"blk.{i}.nextn.")

    def ffn_wants(self, layer: int) -> Iterator[Want]:
        """The tensors of a block's feed-forward part."""
        return ffn_wants(layer, self.hp.n_embd, self.hp.n_ff[layer])

    def ffn(self, s: StepGraph, layer: int, h: Value) -> Value:
        """A block's feed-forward part. h: [N, n_embd], normalised; returns the same."""
        return ffn(s, layer, h)

    def _mtp_wants(self, b: str) -> Iterator[Want]:
        n, v = self.hp.n_embd, self.hp.n_vocab
        yield Want(b + "eh_proj.weight", (n, 2 * n))
        yield Want(b + "enorm.weight", (n,))
        yield Want(b + "hnorm.weight", (n,))
        yield Want(b + "embed_tokens.weight", (v, n), optional=True)
        yield Want(b + "shared_head_head.weight", (v, n), optional=True)
        yield Want(b + "shared_head_norm.weight", (n,), optional=True)

    def trunk(self, s: StepGraph, x: Value) -> Value:
        """All trunk layers."""
        g, hp = s.g, self.hp
        for i in range(hp.n_layer):
            with g.scope(f"blk.{i}"):
                h = norm(s, x, f"blk.{i}.attn_norm.weight", hp.eps)
                if self.recurrent[i]:
                    mixed = delta_net(s, i, h, self.delta)
                else:
                    mixed = attention(s, i, h, attention_shape(hp, i, self.rope, gated=True))
                x = g.add(x, mixed, name="attn_residual")
                h = norm(s, x, f"blk.{i}.post_attention_norm.weight", hp.eps)
                x = g.add(x, self.ffn(s, i, h), name="ffn_residual")
        return x
