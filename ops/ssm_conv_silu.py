"""The convolution of ssm_conv with its activation."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..graph.builder import Graph
from ..graph.case import Case
from ..graph.fusion import Fusion, Uses, maker
from ..graph.node import Node, Value
from ..graph.op import make_op, register
from .replay import SITUATIONS, Situation
from .ssm_conv import SsmConv, conv_case
from .unary import silu


@register
class SsmConvSilu(SsmConv):
    """y = silu of op ssm_conv's y; inputs, the other outputs and padding rows are as there."""

    name = "ssm_conv_silu"
    fuses = ("silu",)

    def reference(
        self, x: np.ndarray, w: np.ndarray, *memory: np.ndarray | None
    ) -> tuple[np.ndarray, ...]:
        y, *kept = super().reference(x, w, *memory)
        return silu(y.astype(np.float64)).astype(np.float32), *kept

    def expand(self, graph: Graph, x: Value, w: Value, *memory: Value | None) -> tuple[Value, ...]:
        """ssm_conv and silu."""
        y, *kept = graph.apply(make_op("ssm_conv", {}), (x, w, *memory)).values
        return graph.silu(y), *kept

    @classmethod
    def fusions(cls, node: Node, uses: Uses) -> Iterable[Fusion]:
        """The activation of what a convolution gives."""
        conv = maker(node.inputs[0], "ssm_conv")
        if conv is None or node.inputs[0] != conv.value():
            return
        kept = {conv.value(i): (i, 0) for i in range(1, len(conv.specs))}
        yield Fusion(cls(), conv.inputs, (conv, node), {node.value(): (0, 0), **kept})

    @staticmethod
    def cases() -> Iterable[Case]:
        for w in (4, 3, 2, 5):
            yield conv_case(48, w, (1,))
            yield conv_case(17, w, (5,), keep=3)
        yield conv_case(64, 4, (3, 0, 5, 1), pad=2, slots=6)
        yield conv_case(33, 4, (2, 7), gap=31, keep=4)
        yield conv_case(32, 4, (40,))
        yield conv_case(32, 4, (0, 0), pad=3, keep=2)
        for situation in SITUATIONS:
            yield conv_case(33, 4, replay=situation, **situation.room)
        for lengths in ((1,), (4,), (1,) * 32, (512,)):
            yield conv_case(10240, 4, lengths, tags=("perf",))
        yield conv_case(10240, 4, replay=Situation((4,), 8, folded=3, direct=1), tags=("perf",))
