"""One graph on several backends: nodes are placed, the graph is cut, copies stand between.

1. pin nodes to where their states and weights are        (placement.py)
2. spread these assignments to neighbours
3. give the rest to a backend that takes it; fused ops that nobody takes are expanded
4. split into segments of one backend each, list the copies   (segments.py)"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..graph import Graph, HostTensor, Node, TensorSpec
from ..graph.errors import BackendError
from ..graph.memory import MemoryPlan
from ..graph.passes.expand import expand, expansion
from .base import (
    Backend,
    BoundPlan,
    Capabilities,
    Index,
    KeptParts,
    Parts,
    Plan,
    Pools,
    Support,
    Weights,
    prepare,
    require_weights,
)
from .placement import Placement, computes, place, refusals
from .segments import Copy, Segment, split


class SplitWeights(Weights):
    """Host weights, loaded by a backend when a plan first needs one there.

    On first use a backend loads its own weights and all that no backend owns, as one set, which
    later plans then share whatever they read of it; each is copied when it is first read."""

    def __init__(
        self,
        backends: Sequence[Backend],
        tensors: Mapping[str, HostTensor],
        progress: Callable[[int], None] | None = None,
        lives_on: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(tensors, progress)
        self.backends = backends
        homes = lives_on or {}
        self._own = [
            {n for n in self.tensors if homes.get(n, i) == i} for i in range(len(backends))
        ]
        self._loaded: dict[int, list[tuple[frozenset[str], Weights]]] = {}

    def on(self, backend: int, names: frozenset[str]) -> Weights:
        """At least these weights as a backend loads them, those that there are."""
        with self._making:
            return self._on(backend, names & self.tensors.keys())

    def _on(self, backend: int, wanted: frozenset[str]) -> Weights:
        loaded = self._loaded.setdefault(backend, [])
        for there, weights in loaded:
            if wanted <= there:
                return weights
        # Some node may have to be elsewhere than its weight; then there is a second set.
        there = frozenset(wanted if loaded else wanted | self._own[backend])
        chosen = {n: self.tensors[n] for n in self.tensors if n in there}
        loaded.append((there, self.backends[backend].load_weights(chosen, self.moved)))
        return loaded[-1][1]


class SplitPools(Pools):
    """Each state in the pools of the backend where it lives; parts: those pools by backend."""

    def __init__(
        self,
        specs: Mapping[str, TensorSpec],
        backends: Sequence[Backend],
        homes: Mapping[str, int],
    ) -> None:
        self.specs, self.homes = dict(specs), {n: homes.get(n, 0) for n in specs}
        self._lives_on = dict(homes)
        self.parts = [
            b.pools({n: s for n, s in specs.items() if self.homes[n] == i})
            for i, b in enumerate(backends)
        ]

    @property
    def states(self) -> dict[str, Any]:  # type: ignore[override]
        """What the states' own pools have for them, by name."""
        return {name: self._of(name).states[name] for name in self.specs}

    @property
    def fill(self) -> int | None:
        """The byte that scratch of all parts is full of at each request, None for nothing."""
        return self.parts[0].fill

    @fill.setter
    def fill(self, value: int | None) -> None:
        for part in self.parts:
            part.fill = value

    def add(self, specs: Mapping[str, TensorSpec]) -> None:
        """Memory for further states, where they live."""
        self.specs |= specs
        for name, spec in specs.items():
            self.homes[name] = self._lives_on.get(name, 0)
            self.parts[self.homes[name]].add({name: spec})

    def _of(self, name: str) -> Pools:
        return self.parts[self.homes[name]]

    def array(self, name: str) -> np.ndarray:
        """What the state's own pools give."""
        return self._of(name).array(name)

    def read(self, name: str, at: Index, out: np.ndarray | None = None) -> np.ndarray:
        """A copy, in host memory, of a part of a state."""
        return self._of(name).read(name, at, out)

    def read_all(self, at: Index, out: Mapping[str, np.ndarray]) -> None:
        """The same part of several states."""
        for i, pools in enumerate(self.parts):
            pools.read_all(at, {n: array for n, array in out.items() if self.homes[n] == i})

    def write(self, name: str, at: Index, values: np.ndarray | int) -> None:
        """Set a part of a state."""
        self._of(name).write(name, at, values)

    def copy(self, name: str, src: Index, dst: Index) -> None:
        """Copy one part of a state over another, on its device."""
        self._of(name).copy(name, src, dst)

    def keep(self, parts: Parts) -> KeptParts:
        """Copies of parts of states, each where its own pools keep it."""
        kept: dict[str, Sequence[Any]] = {}
        for i, pools in enumerate(self.parts):
            kept |= pools.keep({n: at for n, at in parts.items() if self.homes[n] == i})
        return kept

    def put_back(self, name: str, at: Index, kept: Any) -> None:
        """Set a part of a state to one that was kept."""
        self._of(name).put_back(name, at, kept)

    def to_host(self, name: str, kept: Any) -> Any:
        """What was kept of a state, in host memory."""
        return self._of(name).to_host(name, kept)

    def raw(self, name: str) -> np.ndarray:
        """A copy of a state's bytes."""
        return self._of(name).raw(name)

    def load(self, name: str, raw: np.ndarray) -> None:
        """Set all bytes of a state."""
        self._of(name).load(name, raw)

    def scratch(self, size: int, part: str = "arena") -> Any:
        """Working memory of the first backend: plans of a split use that of their own backend."""
        return self.parts[0].scratch(size, part)

    def scratch_bytes(self, part: str = "arena") -> np.ndarray:
        """What that working memory holds now, in host memory."""
        return self.parts[0].scratch_bytes(part)

    def on(self, backend: int, names: Iterable[str]) -> Pools:
        """The pools of a backend, where these states should be. Raises BackendError if not."""
        for name in names:
            if self.homes[name] != backend:
                raise BackendError(
                    f"state {name!r} is written on backend {backend} and its memory is on "
                    f"{self.homes[name]}; say in lives_on where it is to be"
                )
        return self.parts[backend]


class SplitPlan(Plan):
    """A plan per segment, in order, and the copies between them."""

    def __init__(self, placement: Placement, kind: str, backend: SplitBackend) -> None:
        super().__init__(placement.graph, kind)
        self.placement, self.backend, self.backends = placement, backend, backend.backends
        self.segments: list[Segment]
        self.copies: list[Copy]
        self.segments, self.copies = split(placement)
        self.plans = [self.backends[s.backend].compile(s.graph, kind) for s in self.segments]
        arena = max(p.memory.arena_bytes for p in self.plans)
        self.memory = MemoryPlan({}, arena, max(p.memory.peak_bytes for p in self.plans))

    def weights_on(self, backend: int) -> frozenset[str]:
        """The constants that a backend's segments read."""
        mine = (p for p, s in zip(self.plans, self.segments, strict=True) if s.backend == backend)
        return frozenset(name for plan in mine for name in plan.constants)

    def bind(self, weights: SplitWeights, pools: Pools) -> BoundSplit:
        """Attach weights and pools. Raises GraphError for weights that do not fit."""
        require_weights(self, weights.tensors)
        return BoundSplit(self, weights, pools)

    def own_weights(self) -> SplitWeights:
        """None beside the constants that the segments' graphs hold."""
        return SplitWeights(self.backends, {})

    def pools(self) -> Pools:
        """New memory for the plan's states, where they live."""
        return self.backend.pools(self.states)

    def placement_lines(self) -> list[str]:
        """Every node with its backend and the cause, segment by segment, with the copies in."""
        lines = []
        for at, segment in enumerate(self.segments):
            lines.append(f"segment {at} on {self.backends[segment.backend].name}:")
            for copy in self.copies:
                if copy.target == at:
                    lines.append(f"  {copy.name} {copy.spec} from segment {copy.source}")
            for node in segment.nodes:
                cause = self.placement.nodes[node.id].cause
                lines.append(f"  {node.id} {node.op.name} {node.name or '-'}: {cause}")
        return lines


class BoundSplit(BoundPlan):
    """The segments' plans with their memory. States are in the given pools, by name."""

    def __init__(self, plan: SplitPlan, weights: SplitWeights, pools: Pools) -> None:
        self.plan = plan
        names = [plan.weights_on(i) for i in range(len(plan.backends))]
        self.parts: list[BoundPlan] = [
            part.bind(weights.on(s.backend, names[s.backend]), _pools_of(pools, s.backend, part))
            for part, s in zip(plan.plans, plan.segments, strict=True)
        ]
        self.inputs, self._shared = {}, []
        for name, spec in plan.inputs.items():
            readers = [p.inputs[name] for p in self.parts if name in p.inputs]
            self.inputs[name] = (readers or [np.zeros(spec.storage_shape, spec.dtype.storage)])[0]
            self._shared += [(self.inputs[name], other) for other in readers[1:]]
        self.outputs = {
            name: np.zeros(v.spec.storage_shape, v.spec.dtype.storage)
            for name, v in plan.graph.outputs.items()
        }
        # Scratch is shared by all plans on these pools, so results are taken out after each part.
        self._taken: list[list[tuple[str, np.ndarray]]] = [[] for _ in self.parts]
        for copy in plan.copies:
            self._taken[copy.source].append((copy.name, self.parts[copy.target].inputs[copy.name]))
        for at, segment in enumerate(plan.segments):
            kept = self.outputs.keys() & segment.graph.outputs.keys()
            self._taken[at] += [(name, self.outputs[name]) for name in sorted(kept)]

    def run(self, rows: int | None = None) -> None:
        """Run the segments in order."""
        self._run(lambda part: part.run(rows))

    def profile(self, rows: int | None = None) -> list[tuple[str, int]]:
        """Run once; times of all nodes, or none when a backend does not time its own."""
        times: list[list[tuple[str, int]]] = []
        self._run(lambda part: times.append(part.profile(rows)))
        segments = zip(self.plan.segments, times, strict=True)
        complete = all(found or not segment.nodes for segment, found in segments)
        return [t for found in times for t in found] if complete else []

    def _run(self, call: Callable[[BoundPlan], None]) -> None:
        for source, target in self._shared:
            np.copyto(target, source)
        for part, taken in zip(self.parts, self._taken, strict=True):
            call(part)
            for name, target in taken:
                np.copyto(target, part.outputs[name])


def _pools_of(pools: Pools, backend: int, part: Plan) -> Pools:
    return pools.on(backend, part.states) if isinstance(pools, SplitPools) else pools


def _common(parts: Sequence[Capabilities]) -> Capabilities:
    """What holds for backends together: a run ends before it returns, whatever the parts do."""
    return Capabilities(
        on_host=all(c.on_host for c in parts),
        threads=next((c.threads for c in parts if c.threads is not None), None),
        prompt_chunk=min(c.prompt_chunk for c in parts),
        prompt_exact=all(c.prompt_exact for c in parts),
        joins_prompts=all(c.joins_prompts for c in parts),
    )


class SplitBackend(Backend):
    """Several backends as one; earlier ones are preferred.

    lives_on: where weights and states are kept, by name -> index of a backend. Weights without an
    entry go with the nodes that read them, where others have one, and else to the first backend
    that takes their node."""

    def __init__(
        self, backends: Sequence[Backend], lives_on: Mapping[str, int] | None = None
    ) -> None:
        if not backends:
            raise BackendError("a graph needs at least one backend to run on, got none")
        self.backends, self.lives_on = list(backends), dict(lives_on or {})
        self.name = ",".join(b.name for b in backends)
        self.capabilities = _common([b.capabilities for b in backends])

    def supports(self, node: Node) -> Support:
        """Whether any of the backends takes the node, or each of the nodes that it expands to."""
        if self._taken(node):
            return Support(True)
        parts = expansion(node)
        if parts is not None and all(map(self._taken, expand(parts, self._taken).nodes)):
            return Support(True)
        return Support(False, refusals(node, self.backends))

    def _taken(self, node: Node) -> bool:
        return not computes(node) or any(b.supports(node).ok for b in self.backends)

    def compile(self, graph: Graph, kind: str = "step") -> SplitPlan:
        """Place, split and compile. Raises Unsupported naming every backend's reason."""
        placement = place(prepare(graph, kind), self.backends, self.lives_on)
        return SplitPlan(placement, kind, self)

    def pools(self, states: Mapping[str, TensorSpec]) -> Pools:
        """Memory for these states: on the host for all, or by `lives_on`, else on the first."""
        if self.on_host:
            return Pools(states)
        return SplitPools(states, self.backends, self.lives_on)

    def load_weights(
        self, weights: Mapping[str, HostTensor], progress: Callable[[int], None] | None = None
    ) -> SplitWeights:
        """Weights stay where they are until a plan is bound."""
        return SplitWeights(self.backends, weights, progress, self.lives_on)
