"""How far a kernel may be from the reference: normalised mean square error.

An op that differs from the default declares it in its own file, with the reason; docs/ops.md lists
them."""

from __future__ import annotations

from ..graph import Node

# f32 arithmetic with f32 accumulation: relative error about 1e-6, squared.
DEFAULT = 1e-11


def bound(node: Node) -> float:
    """The largest allowed NMSE of a node's outputs."""
    op = node.op
    blocks = any(s.dtype.quantized for s in node.input_specs() if s is not None)
    if blocks and op.block_tolerance is not None:
        return op.block_tolerance
    return DEFAULT if op.tolerance is None else op.tolerance
