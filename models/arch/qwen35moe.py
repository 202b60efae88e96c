"""qwen35moe: as qwen35, with a mixture of experts and a shared expert in every block."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph import Value
from ..architecture import Want, register_architecture
from ..gguf import GgufFile
from ..moe import MoeShape, moe, moe_wants, read_moe
from ..step import StepGraph
from .qwen35 import Qwen35


@register_architecture
class Qwen35Moe(Qwen35):
    """Qwen3.5 / 3.6 with experts. The MTP blocks have experts too."""

    name = "qwen35moe"

    def read(self, file: GgufFile) -> None:
        """What qwen35 has, and the experts."""
        super().read(file)
        n = self.hp.n_layer_all
        self.experts: MoeShape = read_moe(file, self.name, n, shared=True)
        self.fused = [f"blk.{i}.ffn_gate_up_exps.weight" in file.infos for i in range(n)]

    def ffn_wants(self, layer: int) -> Iterator[Want]:
        """Router, experts, shared expert; gate and up as the file has them."""
        return moe_wants(layer, self.hp.n_embd, self.experts, self.fused[layer])

    def ffn(self, s: StepGraph, layer: int, h: Value) -> Value:
        """The mixture in place of the dense block."""
        return moe(s, layer, h, self.experts)
