"""Graphs that begin alike, built once: steps of the same sizes differ in what follows layers."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from ..graph import TensorSpec, Value
from .step import Capacity, StepGraph, StepShape

# Sizes whose plans are made one after the other; several threads may make some.
_MOST = 4


@dataclass(frozen=True)
class _Trunk:
    """A graph with all layers, of weights with these specs, and what the layers give."""

    weights: dict[str, TensorSpec]
    step: StepGraph
    rows: Value


class Trunks:
    """The last few trunks of an architecture. layers: builds them in a graph and returns their
    rows, whatever the graph gives in the end."""

    def __init__(self, layers: Callable[[StepGraph], Value]) -> None:
        self._layers = layers
        self._kept: OrderedDict[tuple[StepShape, Capacity, int], _Trunk] = OrderedDict()
        self._lock = threading.Lock()

    def begin(
        self,
        name: str,
        shape: StepShape,
        capacity: Capacity,
        weights: dict[str, TensorSpec],
        picks: int = 0,
    ) -> tuple[StepGraph, Value]:
        """A graph of this name with all layers, which is the caller's to finish, and their rows."""
        n_out = shape.n_out or shape.n_tokens  # whether some rows want logits decides on an input
        sizes = StepShape(shape.n_tokens, shape.n_seqs, n_out)
        key = (sizes, capacity, picks)
        with self._lock:
            found = self._kept.get(key)
        if found is None or found.weights != weights:
            step = StepGraph(name, sizes, capacity, dict(weights), picks)
            found = _Trunk(step.weights, step, self._layers(step))
            self._keep(key, found)
        return found.step.again(name, shape, weights), found.rows

    def _keep(self, key: tuple[StepShape, Capacity, int], trunk: _Trunk) -> None:
        with self._lock:
            self._kept[key] = trunk
            self._kept.move_to_end(key)
            while len(self._kept) > _MOST:
                self._kept.popitem(last=False)
