"""Launches of products that end with the rows of the next ones: fewer launches, the same bits."""

from __future__ import annotations

import numpy as np
from cuda_rig import needs_cuda, needs_warpgroups
from riverrun.backends import cuda
from riverrun.backends.reference import ReferenceBackend
from riverrun.graph import Graph
from riverrun.graph.data import host_tensor

pytestmark = [needs_cuda, needs_warpgroups]
K, M = 4096, 40


def drawn(rows: int, columns: int, key: int) -> np.ndarray:
    return np.random.default_rng(key).standard_normal((rows, columns)).astype(np.float32)


def block(n: int) -> Graph:
    """Products, a sum that is normalised, gated units and products: n rows."""
    g = Graph(f"block{n}")
    x, h = g.input("x", (n, 256)), g.input("h", (n, K))

    def weight(rows: int, columns: int, key: int) -> object:
        return g.constant(host_tensor(drawn(rows, columns, key) / np.sqrt(columns), "q8_0"))

    norm = g.constant(drawn(1, K, 1)[0])
    pair = weight(K, K, 3), weight(K, K, 4)
    y, total = g.add_norm_mul_mats(h, g.mul_mats(x, weight(K, 256, 2)), norm, *pair, eps=1e-6)
    gate, up = (g.view(y, axis=1, start=at, stop=at + K) for at in (0, K))
    g.output("total", total)
    g.output("y", g.glu_mul_mat(gate, up, weight(M, K, 5), act="silu"))
    return g


def run(n: int, graphs: bool = True) -> cuda.BoundCuda:
    """The first n of rows that are the same for all n."""
    plan = cuda.CudaBackend(graphs=graphs).compile(block(n))
    bound = plan.bind(plan.own_weights(), plan.pools())
    bound.inputs["x"][:] = drawn(4, 256, 6)[:n]
    bound.inputs["h"][:] = drawn(4, K, 7)[:n]
    bound.run()
    return bound


def test_rows_made_at_the_end_of_products_are_those_of_a_launch() -> None:
    """One row is made by the products before, several are by launches of their own."""
    alone, several = run(1), run(4)
    assert alone.launches == 5 and several.launches == 6
    first = {name: alone.outputs[name].copy() for name in ("total", "y")}
    for name, of in first.items():
        assert np.array_equal(of[0], several.outputs[name][0])
    for _ in range(3):
        alone.run()
        for name, of in first.items():
            assert np.array_equal(of, alone.outputs[name])


def test_the_profile_of_nodes_changes_no_bits() -> None:
    """Node by node, nothing is made of the next one's."""
    bound = run(1, graphs=False)
    first = bound.outputs["y"].copy()
    bound.profile()
    assert np.array_equal(first, bound.outputs["y"])
    bound.run()
    assert np.array_equal(first, bound.outputs["y"])


def test_values_are_those_of_the_reference() -> None:
    bound = run(1)
    plan = ReferenceBackend().compile(block(1))
    want = plan(x=drawn(4, 256, 6)[:1], h=drawn(4, K, 7)[:1])
    for name in ("total", "y"):
        got = bound.outputs[name]
        assert np.abs(got - want[name]).max() < 2e-3 * np.abs(want[name]).max()
