"""Looking into the passes of a session: the rows of every node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..backends import BoundPlan
from ..backends.kept import BoundKeeping, KeepingPlan
from ..graph import DType, Value
from ..graph.verify import state_versions
from ..models.step import StepShape
from .bound_step import BoundStep
from .model import Model
from .runner import Runner
from .session_memory import SessionMemory
from .session_plan import SessionPlan

TOKEN_INPUTS = ("tokens", "positions")
Key = tuple[str, str, int, int]


@dataclass(frozen=True)
class NodeRows:
    """One output of a node. stored: [n, ...] as its dtype is stored, a row for each token looked
    at; shape: of a row's values."""

    op: str
    name: str
    output: str
    dtype: DType
    shape: tuple[int, ...]
    stored: np.ndarray


@dataclass(frozen=True)
class Captured:
    """A pass of `total` tokens. nodes: in order of evaluation, by op, name, a number that counts
    nodes alike in these, and output; values without a row for each token are left out."""

    total: int = 0
    nodes: dict[Key, NodeRows] = field(default_factory=dict)


class CapturingRunner(Runner):
    """Runs passes like any runner, except for those that `capture` makes: they run plans in which
    every value is kept, so no memory is used twice."""

    def __init__(self, model: Model, plan: SessionPlan, storage: SessionMemory) -> None:
        super().__init__(model, plan, storage)
        self._kept = Runner(model, plan, storage)
        self._kept.bind = self._bind_kept  # type: ignore[method-assign]
        self._look: Callable[[int], slice] | None = None
        self._found = Captured()

    def capture(self, run: Callable[[], object], rows: Callable[[int], slice]) -> Captured:
        """What the last pass that run() makes computes. rows: from the number of tokens of a pass
        to those to be looked at."""
        self._look, self._found = rows, Captured()
        try:
            run()
        finally:
            self._look = None
        return self._found

    def step(self, *of: Any, **more: Any) -> BoundStep:
        """The step, of the plans that keep their values while capturing."""
        return self._kept.step(*of, **more) if self._look is not None else super().step(*of, **more)

    def fold_step(self) -> BoundStep:
        """The same for the pass without tokens."""
        return self._kept.fold_step() if self._look is not None else super().fold_step()

    def _bind_kept(self, shape: StepShape, kind: str, program: str) -> BoundPlan:
        plan = self.model.plan(shape, self.plan.capacity, kind, program)
        kept = KeepingPlan(plan.graph, kind, self.model.backend, self._seen)
        return kept.bind(self.model.weights, self.pools)

    def _seen(self, bound: BoundKeeping, rows: int | None) -> None:
        graph = bound.plan.graph
        n = bound.plan.inputs["positions"].shape[0]
        total = n if rows is None else rows
        assert self._look is not None
        part, states = self._look(total), state_versions(graph)
        nodes: dict[Key, NodeRows] = {}
        numbers: dict[tuple[str, str], list[int]] = {}
        for value, stored in bound.values().items():
            node = value.node
            alike = numbers.setdefault((node.op.name, node.name), [])
            if node.id not in alike:
                alike.append(node.id)
            if stored is None or value in states or not _by_token(value, n):
                continue
            nodes[node.op.name, node.name, len(alike), value.index] = NodeRows(
                node.op.name,
                node.name,
                node.output_names()[value.index] if len(node.specs) > 1 else "",
                value.spec.dtype,
                value.spec.shape[1:],
                stored[:total][part].copy(),
            )
        self._found = Captured(total, nodes)


def _by_token(value: Value, n: int) -> bool:
    """Whether a value has a row for each of n tokens that depends on the text alone."""
    if value.node.op.name == "input" and value.node.name not in TOKEN_INPUTS:
        return False
    return value.spec.shape[:1] == (n,)
