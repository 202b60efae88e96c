"""lfm2moe: as lfm2, with experts behind a sigmoid in all layers but the first few."""

from __future__ import annotations

from ..architecture import register_architecture
from ..gguf import GgufFile
from ..moe import DenseFirst
from .lfm2 import Lfm2


@register_architecture
class Lfm2Moe(DenseFirst, Lfm2):
    """LFM2 with experts, none of them shared."""

    name = "lfm2moe"

    def read(self, file: GgufFile) -> None:
        """What lfm2 has, and the experts."""
        super().read(file)
        self.read_experts(file, self.hp.n_layer, gating="sigmoid")
