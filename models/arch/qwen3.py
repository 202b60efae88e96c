"""qwen3: as llama, with half-split rotary pairs and a norm on every query and key head."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph import Value
from ..architecture import Architecture, Want, register_architecture
from ..blocks import (
    AttentionShape,
    Rope,
    attention_shape,
    pre_norm_layers,
    pre_norm_memories,
    pre_norm_wants,
)
from ..gguf import GgufFile
from ..memories import MemorySpec
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
        yield from self.common_wants()
        yield from pre_norm_wants(self.hp, self._shape)

    def trunk(self, s: StepGraph, x: Value) -> Value:
        """All layers."""
        return pre_norm_layers(s, x, self.hp, self._shape)

    def memories(self) -> tuple[MemorySpec, ...]:
        """Every layer attends."""
        return pre_norm_memories(self.hp, self._shape)

    def _shape(self, layer: int) -> AttentionShape:
        return attention_shape(self.hp, layer, self.rope)
