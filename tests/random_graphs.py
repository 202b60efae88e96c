"""Random graphs for property tests: elementwise ops, views, several outputs, written state."""

from __future__ import annotations

from typing import Any

import numpy as np
import riverrun.ops  # noqa: F401
from hypothesis import strategies as st
from riverrun.graph import Graph, Value

UNARY = ("silu", "neg", "relu", "sigmoid")
BINARY = ("add", "sub", "mul", "swiglu")
OTHER = ("view", "reshape", "permute", "concat", "top_k", "scale", "norm", "write", "read", "patch")
MAX_SIZE = 512


class Grower:
    """Adds nodes drawn by hypothesis; `values` are the f32 ones that later nodes may take."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.g = Graph("random")
        self.values = [self.g.input(f"x{i}", (4, 8)) for i in range(2)]
        self.values.append(self.g.constant(np.linspace(-1, 1, 32).reshape(4, 8), "c"))
        self.idx = self.g.input("idx", (4,), "i32")
        self.state = self.g.state("s", (6, 8))
        self.read = False

    def pick(self) -> Value:
        """Any value so far, the newest ones as likely as all the others."""
        recent = self.values[-3:] if self.draw(st.booleans()) else self.values
        return self.draw(st.sampled_from(recent))

    def step(self) -> None:
        """Add a node, or none where the drawn op takes nothing that there is."""
        op, a = self.draw(st.sampled_from(UNARY + BINARY + OTHER)), self.pick()
        if op in UNARY:
            self.values.append(getattr(self.g, op)(a))
        elif op in BINARY:
            alike = [v for v in self.values if v.shape == a.shape]
            b = self.draw(st.sampled_from(alike[-3:]))
            self.values.append(getattr(self.g, op)(a, b))
        else:
            self.values += getattr(self, f"_{op}")(a)

    def _view(self, a: Value) -> list[Value]:
        if 0 in a.shape:
            return []
        axis = self.draw(st.integers(0, len(a.shape) - 1))
        start = self.draw(st.integers(0, a.shape[axis] - 1))
        stop = self.draw(st.integers(start + 1, a.shape[axis]))
        return [self.g.view(a, axis=axis, start=start, stop=stop)]

    def _reshape(self, a: Value) -> list[Value]:
        return [self.g.reshape(a, shape=(-1, a.shape[-1]))] if a.spec.contiguous else []

    def _permute(self, a: Value) -> list[Value]:
        return [self.g.permute(a, axes=tuple(reversed(range(len(a.shape)))))]

    def _concat(self, a: Value) -> list[Value]:
        return [self.g.concat(a, a, axis=0)] if a.spec.size * 2 <= MAX_SIZE else []

    def _top_k(self, a: Value) -> list[Value]:
        values, _ = self.g.top_k(a, k=min(3, a.shape[-1]))
        return [values]

    def _scale(self, a: Value) -> list[Value]:
        return [self.g.scale(a, factor=0.5, bias=0.25)]

    def _norm(self, a: Value) -> list[Value]:
        return [self.g.rms_norm(a, eps=1e-6)]

    def _write(self, a: Value) -> list[Value]:
        # After a read of the newest version only an overwrite that depends on it is in order.
        if a.shape == (4, 8) and a.spec.contiguous and not self.read:
            self.state = self.g.write_rows(self.state, a, self.idx)
        return []

    def _patch(self, a: Value) -> list[Value]:
        """A write into a copy, which nothing else reads."""
        dense = a.spec.byte_strides[-1:] == (a.dtype.nbytes,)
        fits = a.shape == (4, 8) and dense
        return [self.g.write_rows(self.g.cont(a), a, self.idx)] if fits else []

    def _read(self, a: Value) -> list[Value]:
        self.read = True
        return [self.g.neg(self.g.view(self.state, axis=0, start=1, stop=5))]


@st.composite
def graphs(draw: Any, most: int = 24) -> Graph:
    """A valid graph of up to `most` nodes with one to three outputs."""
    grower = Grower(draw)
    for _ in range(draw(st.integers(3, most))):
        grower.step()
    chosen = [grower.values[-1], *(grower.pick() for _ in range(draw(st.integers(0, 2))))]
    for i, value in enumerate(chosen):
        grower.g.output(f"y{i}", value)
    return grower.g


def leaf_values(graph: Graph) -> dict[str, np.ndarray]:
    """Fixed contents for the inputs, constants and states of a random graph."""
    rng = np.random.default_rng(len(graph.nodes))
    found: dict[str, np.ndarray] = {}
    for node in graph.nodes:
        if not node.is_leaf:
            continue
        if node.op.name == "constant":
            found[node.name] = graph.data[node.name].decoded()
        elif node.name == "idx":
            found[node.name] = np.array([3, -1, 0, 3], np.int32)
        else:
            found[node.name] = rng.uniform(-2, 2, node.specs[0].shape).astype(np.float32)
    return found
