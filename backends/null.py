"""The null backend: takes everything, computes nothing, and remembers what it was asked for.

Schedulers and engines are tested with it, apart from any arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ..graph import Graph, HostTensor, Node
from ..graph.memory import plan_memory
from .base import (
    Backend,
    BoundPlan,
    Capabilities,
    Plan,
    Pools,
    Support,
    Weights,
    prepare,
    require_weights,
)


@dataclass(frozen=True)
class NullRun:
    """One run: how many rows the caller called real, and copies of its inputs."""

    rows: int | None
    inputs: dict[str, np.ndarray]


class NullPlan(Plan):
    """nodes: what would be computed, in order; log: every run of everything bound to this plan."""

    def __init__(self, graph: Graph, kind: str) -> None:
        super().__init__(graph, kind)
        self.memory = plan_memory(graph)
        self.nodes: list[Node] = [n for n in graph.nodes if not n.is_leaf and not n.op.view]
        self.log: list[NullRun] = []

    def bind(self, weights: Weights, pools: Pools) -> BoundNull:
        """Attach weights and pools. Raises GraphError for weights that do not fit."""
        require_weights(self, weights.tensors)
        return BoundNull(self)

    def own_weights(self) -> Weights:
        """The constants given while building."""
        return Weights(self.graph.data)


class BoundNull(BoundPlan):
    """Inputs to fill; outputs that are zero and stay so."""

    def __init__(self, plan: NullPlan) -> None:
        self.plan = plan
        self.inputs = {
            k: np.zeros(s.storage_shape, s.dtype.storage) for k, s in plan.inputs.items()
        }
        self.outputs = {
            k: np.zeros(v.spec.storage_shape, v.spec.dtype.storage)
            for k, v in plan.graph.outputs.items()
        }

    def run(self, rows: int | None = None) -> None:
        """Write the run down."""
        self.plan.log.append(NullRun(rows, {k: a.copy() for k, a in self.inputs.items()}))


class NullBackend(Backend):
    """plans: all that were compiled, in order."""

    name = "null"
    capabilities = Capabilities(prompt_exact=True)

    def __init__(self) -> None:
        self.plans: list[NullPlan] = []

    def supports(self, node: Node) -> Support:
        """Every node: there is nothing to compute."""
        return Support(True)

    def compile(self, graph: Graph, kind: str = "step") -> NullPlan:
        """A plan that keeps a log."""
        self.plans.append(NullPlan(prepare(graph, kind), kind))
        return self.plans[-1]

    def load_weights(
        self, weights: Mapping[str, HostTensor], progress: Callable[[int], None] | None = None
    ) -> Weights:
        """Nothing is moved."""
        return Weights(weights, progress)
