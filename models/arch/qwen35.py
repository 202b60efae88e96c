"""qwen35: three gated-delta-net layers for each gated full-attention layer, SwiGLU after each."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph import Value
from ...graph.errors import ModelError
from ..architecture import Want, register_architecture
from ..blocks import AttentionShape, Rope, attention_shape
from ..delta_net import DeltaNetShape, delta_net, delta_net_wants, read_delta_net, recur
from ..gguf import INT_KINDS, GgufFile
from ..hparams import read_count
from ..memories import MemorySpec, RecurrentPart
from ..nextn import NextN
from ..recurrent import Hybrid, no_tokens
from ..step import StepGraph


@register_architecture
class Qwen35(NextN, Hybrid):
    """Dense Qwen3.5 / 3.6. Files may carry MTP blocks after the trunk."""

    name = "qwen35"
    ffn_norm = "post_attention_norm.weight"

    def read(self, file: GgufFile) -> None:
        """Delta-net sizes, rotary sections, which layers are recurrent."""
        hp = self.hp
        self.delta: DeltaNetShape = read_delta_net(file, self.name, hp.eps, heads="tiled")
        if hp.head_dim_v != hp.head_dim_k:
            raise ModelError(
                f"{file.path}: {self.name}.attention.value_length should be key_length "
                f"{hp.head_dim_k}, got {hp.head_dim_v}"
            )
        self.rope = self.read_rope(file)
        self.recurrent = self._recurrent_layers(file)

    def read_rope(self, file: GgufFile) -> Rope:
        """Sections of positions in time and in images."""
        hp = self.hp
        key = f"{self.name}.rope.dimension_sections"
        sections = file.get_array(key, INT_KINDS, min_len=3, max_len=4)
        if not 0 <= min(sections) <= max(sections) <= hp.n_rot or not any(sections):
            raise ModelError(
                f"{file.path}: {key} should be counts up to rope.dimension_count {hp.n_rot}, not "
                f"all 0, got {sections.tolist()}"
            )
        return Rope(
            "imrope",
            hp.n_rot,
            hp.rope_base,
            hp.rope_scaling,
            sections=tuple(int(n) for n in sections) + (0,) * (4 - len(sections)),
        )

    def _recurrent_layers(self, file: GgufFile) -> list[bool]:
        key, n = f"{self.name}.attention.recurrent_layers", self.hp.n_layer
        if key in file.metadata:
            flags = file.get_array(key, INT_KINDS, min_len=n, max_len=self.hp.n_layer_all)
            return [bool(f) for f in flags[:n]]
        key = f"{self.name}.full_attention_interval"
        interval = read_count(file, key, 1, 2**31 - 1, 4)
        return [(i + 1) % interval != 0 for i in range(n)]

    def wants(self) -> Iterator[Want]:
        """Tensor names and shapes, MTP blocks included."""
        yield from super().wants()
        for i in range(self.hp.n_layer, self.hp.n_layer_all):
            yield from self.layer_wants(i)
        yield from self.nextn_wants()

    def recurrent_wants(self, layer: int) -> Iterator[Want]:
        """The tensors of a delta-net layer."""
        return delta_net_wants(layer, self.hp.n_embd, self.delta)

    def recurrent_layer(self, s: StepGraph, layer: int, h: Value) -> Value:
        """The delta net."""
        return delta_net(s, layer, h, self.delta)

    def attention_shape(self, layer: int) -> AttentionShape:
        """Behind a gate."""
        return attention_shape(self.hp, layer, self.rope, gated=True)

    @property
    def parts(self) -> tuple[RecurrentPart, ...]:
        """Those of delta-net layers."""
        return self.delta.memory

    def fold(self, s: StepGraph, layer: int) -> Value:
        """Convolution and delta rule."""
        gates = no_tokens(s, self.delta.v_heads)
        return recur(s, layer, no_tokens(s, self.delta.channels), gates, gates, self.delta)

    def nextn_block(self, s: StepGraph, layer: int, x: Value) -> Value:
        """A layer that attends."""
        return self.layer(s, layer, x)

    def nextn_memories(self) -> tuple[MemorySpec, ...]:
        """Keys and values."""
        return self.attention_memory(range(self.hp.n_layer, self.hp.n_layer_all))
