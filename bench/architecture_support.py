"""Which architecture runs on which backend, asked of the graphs of a published model's shape.

Nothing is computed and no weights are made: a backend is asked node by node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from ..backends import Backend
from ..engine.memory import STRATEGIES, Demand, layouts
from ..graph import Graph, Node, TensorSpec
from ..graph.errors import ModelError
from ..models.architecture import Architecture
from ..models.memories import PAGE, Capacity, RecurrentSpec
from ..models.quantizing import find_mix
from ..models.step import CANDIDATES, StepShape
from ..models.synth import SHAPES, outline

MIX = "Q4_K_M"
# A token of each sequence, drafts of both, a chunk of a prompt.
STEPS = (StepShape(2, 2, 2), StepShape(8, 2, 8, hidden=True), StepShape(64, 1, 1))
CONTEXT, SEQUENCES, DRAFTS = 4 * PAGE, 2, 4


@dataclass(frozen=True)
class Outlined:
    """An architecture in the shape of a published model, whose name that is; specs: of its tensors;
    mtp: whether it has a block that predicts further tokens."""

    shape: str
    arch: Architecture
    specs: dict[str, TensorSpec]
    mtp: bool

    @property
    def recurrent(self) -> bool:
        """Whether a choice of how to roll back is there."""
        return any(isinstance(spec, RecurrentSpec) for spec in self.arch.memories())


@dataclass(frozen=True)
class Taken:
    """What a backend makes of an architecture. refused: op -> why, of nodes that it does not take;
    rollback: the strategies whose graphs it takes."""

    refused: dict[str, str]
    rollback: tuple[str, ...]


@cache
def published(arch: type[Architecture]) -> Outlined:
    """The shape that stands for an architecture: the first one of a published model.

    Raises ModelError where there is none."""
    for name, shape in SHAPES.items():
        if shape.arch == arch.name and name != "tiny" and not name.endswith("-tiny"):
            mtp = arch.mtp is not Architecture.mtp
            return Outlined(name, *outline(name, find_mix(MIX), mtp), mtp)
    raise ModelError(
        f"architecture {arch.name!r} should have the shape of a published model in "
        "models/synth/shapes.py, got none"
    )


def taken(model: Outlined, backend: Backend) -> Taken:
    """What a backend makes of the model's programs, and with which strategies it rolls back."""
    refused = _refused(_programs(model), backend)
    if not model.recurrent:
        return Taken(refused, ())
    able = [name for name in STRATEGIES if not _refused(_with_drafts(model, name), backend)]
    return Taken(refused, tuple(able))


def _programs(model: Outlined) -> Iterator[Graph]:
    """Graphs of all programs, without drafts."""
    found, n_vocab = model.arch.programs(), model.arch.hp.n_vocab
    for name in ("trunk", *(["mtp"] if model.mtp else [])):
        capacity = _capacity(model, name)
        yield from (found[name].graph(step, capacity, model.specs, n_vocab) for step in STEPS)
    for candidates in (1, CANDIDATES):
        step = StepShape(SEQUENCES, SEQUENCES, SEQUENCES, candidates=candidates)
        yield found["ahead"].graph(step, _capacity(model, "ahead"), model.specs, n_vocab)


def _with_drafts(model: Outlined, rollback: str) -> Iterator[Graph]:
    """Graphs of a session that takes drafts back by a strategy."""
    capacity = _capacity(model, "trunk", rollback, DRAFTS)
    for step in STEPS:
        yield model.arch.build(step, capacity, model.specs)


def _capacity(model: Outlined, program: str, rollback: str = "auto", drafts: int = 0) -> Capacity:
    pages = CONTEXT // PAGE
    capacity = Capacity(SEQUENCES * pages, pages, SEQUENCES)
    demand = Demand(CONTEXT, SEQUENCES, max(s.n_tokens for s in STEPS), rollback, drafts)
    for spec in model.arch.programs()[program].memories:
        capacity = layouts(spec, demand)[0].size(capacity)
    return capacity


def _refused(graphs: Iterable[Graph], backend: Backend) -> dict[str, str]:
    """op -> why, of the first node of each op that the backend does not take."""
    found: dict[str, str] = {}
    for node in _nodes(graphs):
        answer = backend.supports(node)
        if not answer.ok:
            found.setdefault(node.op.name, answer.why)
    return found


def _nodes(graphs: Iterable[Graph]) -> Iterator[Node]:
    """Those that differ from all before, leaves and views aside."""
    seen = set()
    for graph in graphs:
        for node in graph.nodes:
            leaves = tuple(value is not None and value.node.is_leaf for value in node.inputs)
            key = (node.op, tuple(node.input_specs()), leaves)
            if not node.is_leaf and not node.op.view and key not in seen:
                seen.add(key)
                yield node
