"""The plain transformer with a mixture of experts in place of its dense block."""

from __future__ import annotations

from collections.abc import Iterator

from ..graph import Value
from .architecture import Want
from .moe import MoeShape, moe, moe_wants
from .pre_norm import PreNorm
from .step import StepGraph


class Mixture(PreNorm):
    """Every layer has experts, where `read` sets them; the dense block without any."""

    experts: MoeShape | None = None

    def ffn_wants(self, layer: int) -> Iterator[Want]:
        """The dense block, or experts, gate and up of each apart."""
        if self.experts is None:
            return super().ffn_wants(layer)
        return moe_wants(layer, self.hp.n_embd, self.experts, fused=False)

    def ffn(self, s: StepGraph, layer: int, h: Value) -> Value:
        """The dense block, or experts."""
        return super().ffn(s, layer, h) if self.experts is None else moe(s, layer, h, self.experts)
