"""How far a kernel may be from the reference: normalised mean square error, one table.

A bound looser than the default has its reason beside it."""

from __future__ import annotations

from ..graph import Node

# f32 arithmetic with f32 accumulation: relative error about 1e-6, squared.
DEFAULT = 1e-11

# Weights of block types meet activations rounded to 8 bits (one scale per 32 values): a rounding
# step of max/127 gives an error of 1.6e-5 of a uniform row's power, and more for rows of few
# large values.
QUANTISED_PRODUCT = 2e-4

BY_OP = {
    # sums of several thousand f32 products
    "mul_mat": 1e-10,
    "mul_mat_id": 1e-10,
    # state is carried through hundreds of f32 updates
    "gated_delta_net": 1e-9,
    "ggml_gated_delta_net": 1e-9,
    # exponentials of f32 scores of magnitude up to 110
    "attention": 1e-9,
    # one rounding or none, so there is one right answer
    "write_rows": 0.0,
    "cont": 0.0,
    "cast": 0.0,
    "concat": 0.0,
    "get_rows": 0.0,
    "top_k": 0.0,
    "add": 0.0,
    "sub": 0.0,
    "mul": 0.0,
    "div": 0.0,
    "clamp": 0.0,
    "repeat": 0.0,
    "pad": 0.0,
    "set": 0.0,
    "abs": 0.0,
    "neg": 0.0,
    "relu": 0.0,
}


def bound(node: Node) -> float:
    """The largest allowed NMSE of a node's outputs."""
    types = {s.dtype.quantized for s in node.input_specs() if s is not None}
    if node.op.name in ("mul_mat", "mul_mat_id") and True in types:
        return QUANTISED_PRODUCT
    return BY_OP.get(node.op.name, DEFAULT)
