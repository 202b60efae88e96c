"""llama: pre-norm attention and SwiGLU, interleaved rotary pairs."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph import Value
from ...graph.errors import ModelError
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
        yield from pre_norm_wants(hp, self._shape)

    def trunk(self, s: StepGraph, x: Value) -> Value:
        """All layers."""
        return pre_norm_layers(s, x, self.hp, self._shape)

    def memories(self) -> tuple[MemorySpec, ...]:
        """Every layer attends."""
        return pre_norm_memories(self.hp, self._shape)

    def _shape(self, layer: int) -> AttentionShape:
        return attention_shape(self.hp, layer, self.rope, qk_norm=False, bias=True)
