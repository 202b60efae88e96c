"""qwen3next: as qwen35moe, with other packings of the delta net's projections."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..architecture import Want, register_architecture
from ..blocks import Rope
from ..delta_net import delta_net_wants
from ..gguf import GgufFile
from .qwen35moe import Qwen35Moe


@register_architecture
class Qwen3Next(Qwen35Moe):
    """Qwen3-Next. Value heads lie beside those that share their key head; earlier files have one
    projection, ssm_in, in place of attn_qkv and attn_gate."""

    name = "qwen3next"

    def read(self, file: GgufFile) -> None:
        """What qwen35moe has; which layers have one projection."""
        super().read(file)
        self.delta = replace(self.delta, heads="grouped", joint=True)
        n = self.hp.n_layer_all
        self.whole = [f"blk.{i}.ssm_in.weight" in file.infos for i in range(n)]

    def read_rope(self, file: GgufFile) -> Rope:
        """Of text alone."""
        return Rope("neox", self.hp.n_rot, self.hp.rope_base, self.hp.rope_scaling)

    def recurrent_wants(self, layer: int) -> Iterator[Want]:
        """As the file has them."""
        return delta_net_wants(layer, self.hp.n_embd, self.delta, self.whole[layer])
