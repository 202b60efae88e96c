"""qwen3moe: as qwen3, with a mixture of experts in every block."""

from __future__ import annotations

from ..architecture import register_architecture
from ..gguf import GgufFile
from ..moe import Mixture, read_moe
from .qwen3 import Qwen3


@register_architecture
class Qwen3Moe(Mixture, Qwen3):
    """Qwen3 with experts, none of them shared."""

    name = "qwen3moe"

    def read(self, file: GgufFile) -> None:
        """What qwen3 has, and the experts."""
        super().read(file)
        self.experts = read_moe(file, self.name, self.hp.n_layer, shared=False)
