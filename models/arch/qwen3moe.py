"""qwen3moe: as qwen3, with a mixture of experts in every block."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph import Value
from ..architecture import Want, register_architecture
from ..gguf import GgufFile
from ..moe import MoeShape, moe, moe_wants, read_moe
from ..step import StepGraph
from .qwen3 import Qwen3


@register_architecture
class Qwen3Moe(Qwen3):
    """Qwen3 with experts, none of them shared."""

    name = "qwen3moe"

    def read(self, file: GgufFile) -> None:
        """What qwen3 has, and the experts."""
        super().read(file)
        self.experts: MoeShape = read_moe(file, self.name, self.hp.n_layer, shared=False)

    def ffn_wants(self, layer: int) -> Iterator[Want]:
        """Router and experts."""
        return moe_wants(layer, self.hp.n_embd, self.experts, fused=False)

    def ffn(self, s: StepGraph, layer: int, h: Value) -> Value:
        """The mixture in place of the dense block."""
        return moe(s, layer, h, self.experts)
