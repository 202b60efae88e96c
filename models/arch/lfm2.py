"""lfm2: gated short convolutions, with attention in some layers, and SwiGLU after each."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph import Value
from ...graph.errors import ModelError
from ..architecture import Want, register_architecture
from ..blocks import AttentionShape, Rope, attention_shape
from ..gguf import GgufFile
from ..memories import RecurrentPart
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

    def recurrent_wants(self, layer: int) -> Iterator[Want]:
        """The tensors of a convolution."""
        n, b = self.hp.n_embd, f"blk.{layer}.shortconv."
        yield Want(b + "in_proj.weight", (3 * n, n))
        yield Want(b + "conv.weight", (n, self.width))
        yield Want(b + "out_proj.weight", (n, n))

    def recurrent_layer(self, s: StepGraph, layer: int, h: Value) -> Value:
        """Gate, convolution, gate."""
        g, b, n = s.g, f"blk.{layer}.shortconv.", self.hp.n_embd
        both = g.mul_mat(h, s.w(b + "in_proj.weight"), name="in_proj")
        before, after, x = (
            g.view(both, axis=1, start=part * n, stop=(part + 1) * n) for part in range(3)
        )
        y = g.mul(after, self._conv(s, layer, g.mul(before, x, name="b_x")), name="c_conv")
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

    def fold(self, s: StepGraph, layer: int) -> Value:
        """The convolution."""
        return self._conv(s, layer, no_tokens(s, self.hp.n_embd))

    def attention_shape(self, layer: int) -> AttentionShape:
        """With norms of queries and keys."""
        return attention_shape(self.hp, layer, self.rope)
