"""A backend that takes less than the one it stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from riverrun.backends import Backend, Plan, Support
from riverrun.backends.base import Weights
from riverrun.backends.delegate import Delegate
from riverrun.graph import Graph, HostTensor, Node


class Without(Delegate, Backend):
    """Another backend that refuses some ops, and records the ops of every graph it compiles."""

    def __init__(self, inner: Backend, *ops: str, name: str = "") -> None:
        self.inner, self.ops = inner, ops
        self.name = name or inner.name
        self.compiled: list[list[str]] = []

    def supports(self, node: Node) -> Support:
        if node.op.name in self.ops:
            return Support(False, f"does without {node.op.name}")
        return self.inner.supports(node)

    def compile(self, graph: Graph, kind: str = "step") -> Plan:
        ops = [n.op.name for n in graph.nodes if not n.is_leaf and not n.op.view]
        assert not set(ops) & set(self.ops)
        self.compiled.append(ops)
        return self.inner.compile(graph, kind)

    def load_weights(
        self, weights: Mapping[str, HostTensor], progress: Callable[[int], None] | None = None
    ) -> Weights:
        return self.inner.load_weights(weights, progress)
