"""Whole models on the processor, node by node: each value is what the op's reference makes of the
very inputs that the kernel had, products with weights of block types of inputs rounded to 8 bits.
So nothing but that rounding tells the processor's logits from those of the reference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import riverrun as rr
from eight_bits import rounded
from riverrun.backends.base import Backend, Plan
from riverrun.backends.cpu import CpuBackend
from riverrun.backends.cpu_blocks import BlockRecoder
from riverrun.backends.delegate import Delegate
from riverrun.backends.kept import BoundKeeping, KeepingPlan
from riverrun.backends.reference import apply
from riverrun.graph import Graph, HostTensor, Node, Value
from riverrun.graph.codec import decode
from riverrun.models.quantizing import find_mix
from riverrun.models.synth import synthesize

TOKENS = [5, 77, 1500, 3000, 9, 2, 640, 77]  # as many as a bucket has, so that no row is padding
CLOSE = 1e-6  # f32 arithmetic: 1e-7 for a rounding, more where sums cancel
# What rounding x to 8 bits does to most products, and to none more. Nothing where x is a row of an
# embedding in q8_0, which a norm has scaled.
MEDIAN, MOST = 4e-3, 5e-2
PRODUCTS = ("mul_mat", "mul_mat_id")


class Watching(Delegate, Backend):
    """A backend that keeps every value of the newest run."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.graph = Graph("none")
        self.values: dict[Value, np.ndarray] = {}

    def compile(self, graph: Graph, kind: str = "step") -> Plan:
        return KeepingPlan(graph, kind, self.inner, self._seen)

    def _seen(self, bound: BoundKeeping, rows: int | None) -> None:
        self.graph = bound.plan.graph
        kept = bound.values().items()
        self.values = {
            v: decode(v.spec.dtype, a, v.spec.shape).copy() for v, a in kept if a is not None
        }


def run(path: Path) -> tuple[Watching, Mapping[str, HostTensor]]:
    """One pass over TOKENS from an empty session."""
    model = rr.load(path, "cpu", 1)
    watching = Watching(CpuBackend(1))
    model.backend = watching
    model.session(64).evaluate([(0, TOKENS)], want="all")
    return watching, model.source.weights


def of_blocks(node: Node) -> bool:
    """Whether a node is a product with weights of a block type."""
    if node.op.name not in PRODUCTS:
        return False
    w = node.inputs[1]
    return w is not None and w.spec.dtype.quantized


class Judge:
    """Goes through a graph with the values that a run had."""

    def __init__(self, watched: Watching, weights: Mapping[str, HostTensor]) -> None:
        self.graph, self.had, self.weights = watched.graph, watched.values, weights
        self.values: dict[Value, Any] = {}
        self.errors: dict[str, float] = {}
        self.roundings: list[float] = []

    def go(self) -> None:
        """Note the relative error of each node, and of products what rounding does to them."""
        for node in self.graph.nodes:
            if node.is_leaf:
                self.values[node.value()] = self.leaf(node)
                continue
            args = [self.values[v] if v is not None else None for v in node.inputs]
            wants = self.wanted(node, args)
            for index, want in enumerate(wants):
                value = node.value(index)
                self.values[value] = self.had.get(value, want)
                if value in self.had and want.size and want.dtype.kind == "f":
                    label = f"{node.op.name} {node.name}.{index}"
                    self.errors[label] = distance(self.had[value], want)

    def leaf(self, node: Node) -> np.ndarray:
        """Weights decoded, inputs, and states as a session begins."""
        spec = node.specs[0]
        if node.op.name == "constant":
            held = self.weights if node.name in self.weights else self.graph.data
            return held[node.name].decoded()
        return self.had.get(node.value(), np.zeros(spec.shape, spec.dtype.numpy or np.float32))

    def wanted(self, node: Node, args: list[Any]) -> tuple[np.ndarray, ...]:
        """The reference's outputs."""
        plain = apply(node.op, args, node.specs)
        if not of_blocks(node):
            return plain
        found = apply(node.op, [rounded(args[0]), *args[1:]], node.specs)
        self.roundings.append(distance(plain[0], found[0]))
        return found


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """|a - b| / |b| in the root of the sum of squares."""
    wide = b.astype(np.float64)
    return float(np.linalg.norm(a - wide) / max(np.linalg.norm(wide), 1e-30))


@pytest.mark.parametrize(
    "shape,mix",
    [
        ("llama-tiny", "Q4_0"),
        ("llama-tiny", "IQ4_XS"),
        ("qwen3-tiny", "Q2_K"),
        ("qwen35moe-tiny", "Q4_K_M"),
        ("gemma3-tiny", "Q5_1"),
        ("granitehybrid-tiny", "Q8_0"),
        ("kimi-linear-tiny", "Q6_K"),
        ("lfm2moe-tiny", "Q3_K_M"),
    ],
)
def test_every_node_is_its_reference_of_rounded_inputs(
    tmp_path: Path, shape: str, mix: str
) -> None:
    synthesize(shape, find_mix(mix), tmp_path / "m.gguf", BlockRecoder(1))
    judge = Judge(*run(tmp_path / "m.gguf"))
    judge.go()
    assert len(judge.roundings) > 20
    assert np.median(judge.roundings) > MEDIAN and max(judge.roundings) < MOST
    wrong = {label: error for label, error in judge.errors.items() if not error < CLOSE}
    assert not wrong
