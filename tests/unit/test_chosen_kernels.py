"""What a backend remembers of the kernels that it chose."""

from __future__ import annotations

import riverrun.ops  # noqa: F401
from riverrun.backends.cpu import CpuBackend
from riverrun.backends.native import PLAIN
from riverrun.graph import Graph, Node, TensorSpec
from riverrun.graph.dtype import dtype


def scaled(bias: float) -> Node:
    g = Graph()
    return g.scale(g.input("x", (2, 8)), factor=1.0, bias=bias).node


def test_nodes_that_are_alike_share_what_was_chosen() -> None:
    backend = CpuBackend(1)
    first = backend.choose(scaled(0.5))
    assert backend.choose(scaled(0.5)) is first
    assert backend.choose(scaled(0.25)) is not first


def test_signs_of_zero_are_told_apart() -> None:
    backend = CpuBackend(1)
    assert backend.choose(scaled(0.0)) is not backend.choose(scaled(-0.0))


def test_only_constants_are_read_packed() -> None:
    backend = CpuBackend(1)
    g, spec = Graph(), TensorSpec((64, 64), dtype("q8_0"))
    x = g.input("x", (2, 64))
    constant = backend.choose(g.mul_mat(x, g.weight("w", spec)).node)
    given = backend.choose(g.mul_mat(x, g.input("v", spec.shape, spec.dtype)).node)
    assert constant is not given and set(given.layouts) == {PLAIN}


def test_other_layouts_on_offer_are_another_choice() -> None:
    backend = CpuBackend(1)
    g = Graph()
    node = g.mul_mat(g.input("x", (2, 64)), g.weight("w", TensorSpec((64, 64), dtype("q8_0")))).node
    backend.choose(node)
    backend.packed_layouts = ()
    assert set(backend.choose(node).layouts) == {PLAIN}
