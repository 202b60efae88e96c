"""Plans that keep every value of a run, so that each can be looked at when it is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..graph import Graph, Value, verify
from ..graph.verify import memory_versions
from .base import Backend, BoundPlan, Plan, Pools, prepare
from .delegate import Delegate


class KeepingPlan(Delegate, Plan):
    """A plan of the same graph in which values are outputs too; `inner` is the backend's plan.

    Nodes are numbered as in the graph before any backend expands or splits it, so that the same
    graph gives the same values everywhere. seen: called after each run with the bound plan and the
    rows that were asked for. named: inputs and computed values in order, each with its name among
    the outputs of `inner`, None where the run itself overwrites it."""

    def __init__(
        self,
        graph: Graph,
        kind: str,
        backend: Backend,
        seen: Callable[[BoundKeeping, int | None], None],
    ) -> None:
        live = prepare(graph, kind)
        self.wanted = list(live.outputs)
        self.named = _keep_all(live)
        verify(live)
        self.inner = backend.compile(live, kind)
        super().__init__(live, kind)
        self.seen = seen

    def bind(self, weights: Any, pools: Pools, **more: Any) -> BoundPlan:
        """The inner plan, bound; more: what its backend takes besides."""
        return BoundKeeping(self, self.inner.bind(weights, pools, **more))

    def own_weights(self) -> Any:
        """The inner plan's."""
        return self.inner.own_weights()


class BoundKeeping(Delegate, BoundPlan):
    """Runs the inner plan and then shows its values."""

    def __init__(self, plan: KeepingPlan, inner: BoundPlan) -> None:
        self.plan, self.inner = plan, inner
        self.outputs = self._wanted()

    def run(self, rows: int | None = None, **more: Any) -> None:
        """Run once, then show; more: what its backend takes besides."""
        self.inner.run(rows, **more)
        self.inner.finish()
        self.outputs = self._wanted()
        self.plan.seen(self, rows)

    def start(self, **more: Any) -> None:
        """A run that is over, and shown, when this returns."""
        self.run(**more)

    def profile(self, rows: int | None = None) -> list[tuple[str, int]]:
        """Run once, then show; the inner plan's times."""
        found: list[tuple[str, int]] = self.inner.profile(rows)
        self.outputs = self._wanted()
        self.plan.seen(self, rows)
        return found

    def values(self) -> dict[Value, np.ndarray | None]:
        """Inputs and computed values in order, as stored, until the next run; None for what the
        run overwrote."""
        found = self.inner.outputs
        return {value: found[name] if name else None for value, name in self.plan.named.items()}

    def _wanted(self) -> dict[str, np.ndarray]:
        found = self.inner.outputs
        return {name: found[name] for name in self.plan.wanted if name in found}


def _keep_all(graph: Graph) -> dict[Value, str | None]:
    """Make every input and every computed value an output; its name, None for what is overwritten
    before the run ends. Views show what other values hold."""
    version = memory_versions(graph)
    written = {version[old] for n in graph.nodes for old in n.written().values() if old in version}
    named: dict[Value, str | None] = {}
    for node in graph.nodes:
        if node.op.view or node.op.name in ("constant", "state"):
            continue
        for index in range(len(node.specs)):
            value = node.value(index)
            name = f"value.{node.id}.{index}"
            while name in graph.outputs:
                name = f"_{name}"
            lost = version.get(value) in written
            named[value] = None if lost else name
            if not lost:
                graph.output(name, value)
    return named
