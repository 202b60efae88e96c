"""lfm2: gated short convolutions, with attention in some layers, and SwiGLU after each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...graph import Value
from ...graph.errors import ModelError
from ..architecture import Want, register_architecture
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
from ..gguf import GgufFile
from ..memories import MemorySpec, RecurrentPart
from ..recurrent import Hybrid, no_tokens
from ..step import StepGraph


@register_architecture
class Lfm2(Hybrid):
    """Layers without key-value heads convolve: [b, c, x] = in_proj(h); out_proj(c * conv(b * x)).

    Source: Liquid AI 2025, LFM2, arXiv 2511.23404."""

    name = "lfm2"
    hybrid = True
    # The norm before the head; the embeddings have none.
    output_norm = "token_embd_norm.weight"

    def read(self, file: GgufFile) -> None:
        """The convolutions' width, which layers attend."""
        hp, key = self.hp, f"{self.name}.shortconv.l_cache"
        self.width = file.get_u32(key)
        if not 2 <= self.width <= 64:
            raise ModelError(f"{file.path}: {key} should be 2 to 64, got {self.width}")
        if not file.get_bool(f"{self.name}.attention.causal", True):
            raise ModelError(
                f"{file.path}: {self.name}.attention.causal should be true, got false; only models "
                "that generate text are computed"
            )
        key = f"{self.name}.attention.sliding_window"
        if file.get_u32(key, 0):
            raise ModelError(
                f"{file.path}: {key} should be absent or 0, got {file.get_u32(key)}; models of "
                "sound are not computed"
            )
        self.recurrent = [kv == 0 for kv in hp.n_head_kv[: hp.n_layer]]
        self.rope = Rope("neox", hp.n_rot, hp.rope_base, hp.rope_scaling)

    def wants(self) -> Iterator[Want]:
        """Tensor names and shapes."""
        hp = self.hp
        yield from self.common_wants()
        for i in range(hp.n_layer):
            b = f"blk.{i}."
            yield Want(b + "attn_norm.weight", (hp.n_embd,))
            if self.recurrent[i]:
                yield Want(b + "shortconv.in_proj.weight", (3 * hp.n_embd, hp.n_embd))
                yield Want(b + "shortconv.conv.weight", (hp.n_embd, self.width))
                yield Want(b + "shortconv.out_proj.weight", (hp.n_embd, hp.n_embd))
            else:
                yield from attention_wants(i, hp.n_embd, self._shape(i))
            yield Want(b + "ffn_norm.weight", (hp.n_embd,))
            yield from self.ffn_wants(i)

    def ffn_wants(self, layer: int) -> Iterator[Want]:
        """The tensors of a block's feed-forward part."""
        return ffn_wants(layer, self.hp.n_embd, self.hp.n_ff[layer])

    def ffn(self, s: StepGraph, layer: int, h: Value) -> Value:
        """A block's feed-forward part. h: [N, n_embd], normalised; returns the same."""
        return ffn(s, layer, h)

    def trunk(self, s: StepGraph, x: Value) -> Value:
        """All layers."""
        g, hp = s.g, self.hp
        for i in range(hp.n_layer):
            with g.scope(f"blk.{i}"):
                h = norm(s, x, f"blk.{i}.attn_norm.weight", hp.eps)
                mixed = self._convolve(s, i, h) if self.recurrent[i] else self._attend(s, i, h)
                x = g.add(x, mixed, name="attn_residual")
                h = norm(s, x, f"blk.{i}.ffn_norm.weight", hp.eps)
                x = g.add(x, self.ffn(s, i, h), name="ffn_residual")
        return x

    def _attend(self, s: StepGraph, i: int, h: Value) -> Value:
        return attention(s, i, h, self._shape(i))

    def _convolve(self, s: StepGraph, i: int, h: Value) -> Value:
        g, b, n = s.g, f"blk.{i}.shortconv.", self.hp.n_embd
        both = g.mul_mat(h, s.w(b + "in_proj.weight"), name="in_proj")
        before, after, x = (
            g.view(both, axis=1, start=part * n, stop=(part + 1) * n) for part in range(3)
        )
        y = g.mul(after, self._conv(s, i, g.mul(before, x, name="b_x")), name="c_conv")
        return g.mul_mat(y, s.w(b + "out_proj.weight"), name="out_proj")

    def _conv(self, s: StepGraph, i: int, x: Value) -> Value:
        (tail,) = s.recurrent(i, self.parts)
        w = s.w(f"blk.{i}.shortconv.conv.weight")
        where = (s.inputs.seq_offsets, s.inputs.state_rows)
        return s.g.ssm_conv(x, w, *where, tail.state, **tail.where, name="conv")[0]

    @property
    def parts(self) -> tuple[RecurrentPart, ...]:
        """The last width - 1 inputs of the convolution, oldest first."""
        n = self.hp.n_embd
        return (RecurrentPart("conv", (self.width - 1) * n, n),)

    def attention_memory(self, layers: Sequence[int]) -> tuple[MemorySpec, ...]:
        """Keys and values."""
        return attention_memories({i: self._shape(i) for i in layers})

    def fold(self, s: StepGraph, layer: int) -> Value:
        """The convolution."""
        return self._conv(s, layer, no_tokens(s, self.hp.n_embd))

    def _shape(self, layer: int) -> AttentionShape:
        return attention_shape(self.hp, layer, self.rope)
