"""Which architecture runs on which backend, asked of the graphs of a published model's shape.

Nothing is computed and no weights are made: a backend is asked node by node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from ..backends import Backend
from ..engine.memory import STRATEGIES, Demand, layouts
from ..engine.session_options import CACHE_TYPES
from ..graph import Graph, Node, TensorSpec
from ..graph.dtype import dtype
from ..graph.errors import ModelError
from ..models.architecture import Architecture
from ..models.memories import PAGE, Capacity, RecurrentSpec
from ..models.quantizing import find_mix
from ..models.step import CANDIDATES, Choice, StepShape
from ..models.synth import SHAPES, outline

MIX = "Q4_K_M"
# Every kind of layer of the published models is among so many of their first ones.
BLOCKS = 8
# A token of each sequence with hidden rows, a chunk of a prompt; and drafts of both sequences.
STEPS = (StepShape(2, 2, 2, hidden=True), StepShape(64, 1, 1))
ROUND = StepShape(8, 2, 8)
CONTEXT, SEQUENCES, DRAFTS = 4 * PAGE, 2, 4
FIRST = ("trunk", "mtp")  # programs whose tokens are an input


@dataclass(frozen=True)
class Outlined:
    """An architecture in the shape of a published model, whose name that is, with its first blocks
    alone; specs: of its tensors; mtp: it has a block that predicts further tokens."""

    shape: str
    arch: Architecture
    specs: dict[str, TensorSpec]
    mtp: bool

    @property
    def labels(self) -> list[str]:
        """Its kinds of memory."""
        return [spec.label for spec in self.arch.memories()]

    @property
    def recurrent(self) -> bool:
        """Whether there is a choice of how to roll back."""
        return any(isinstance(spec, RecurrentSpec) for spec in self.arch.memories())


@dataclass(frozen=True)
class Taken:
    """What a backend makes of an architecture. refused: op -> why, of nodes that it does not take;
    rollback: the strategies whose graphs it takes."""

    refused: dict[str, str]
    rollback: list[str]


@cache
def published(arch: type[Architecture], blocks: int = BLOCKS) -> Outlined:
    """The shape that stands for an architecture: the first one of a published model.

    Raises ModelError where there is none."""
    for name, shape in SHAPES.items():
        if shape.arch == arch.name and name != "tiny" and not name.endswith("-tiny"):
            return _outlined(name, arch, blocks)
    raise ModelError(
        f"architecture {arch.name!r} should have the shape of a published model in "
        "models/synth/shapes.py, got none"
    )


def _outlined(name: str, arch: type[Architecture], blocks: int) -> Outlined:
    mtp = arch.mtp is not Architecture.mtp
    return Outlined(name, *outline(SHAPES[name].shortened(blocks), find_mix(MIX), mtp), mtp)


def taken(arch: type[Architecture], backend: Backend) -> Taken:
    """What a backend makes of the architecture's programs, and of those that take drafts back."""
    refused = _refused(_plain_nodes(arch), backend)
    if not published(arch).recurrent:
        return Taken(refused, [])
    able = [name for name in STRATEGIES if not _refused(_draft_nodes(arch, name), backend)]
    return Taken(refused, able)


def memory_types(arch: type[Architecture], backend: Backend) -> list[str]:
    """The types that a backend takes for the architecture's attention memory."""
    return [name for name in CACHE_TYPES if not _refused(_typed_nodes(arch, name), backend)]


@cache
def _plain_nodes(arch: type[Architecture]) -> Sequence[Node]:
    """Of all programs, without drafts."""
    model = published(arch)
    names = FIRST if model.mtp else FIRST[:1]
    graphs = [_graph(model, name, step) for name in names for step in STEPS]
    for candidates in (1, CANDIDATES):
        step = StepShape(SEQUENCES, SEQUENCES, SEQUENCES, candidates=candidates)
        graphs.append(_graph(model, "ahead", step))
        choice = Choice(model.arch.hp.n_vocab, candidates, True, ROUND.n_out // 2)
        graphs.append(_graph(model, "trunk", replace(ROUND, choice=choice)))
    return _distinct(graphs)


@cache
def _draft_nodes(arch: type[Architecture], rollback: str) -> Sequence[Node]:
    """Of a session that takes drafts back by a strategy."""
    demand = Demand(CONTEXT, SEQUENCES, ROUND.n_tokens, rollback, DRAFTS)
    return _distinct([_graph(published(arch), "trunk", ROUND, demand)])


@cache
def _typed_nodes(arch: type[Architecture], kind: str) -> Sequence[Node]:
    """Of a session with keys and values of a type."""
    return _distinct(_graph(published(arch), "trunk", step, kind=kind) for step in STEPS)


def _graph(
    model: Outlined, program: str, step: StepShape, demand: Demand | None = None, kind: str = "f16"
) -> Graph:
    pages, found = CONTEXT // PAGE, model.arch.programs()[program]
    demand = demand or Demand(CONTEXT, SEQUENCES, step.n_tokens)
    capacity = Capacity(SEQUENCES * pages, pages, SEQUENCES, dtype(kind), dtype(kind))
    for spec in found.memories:
        capacity = layouts(spec, demand)[0].size(capacity)
    return found.graph(step, capacity, model.specs, model.arch.hp.n_vocab)


def _refused(nodes: Iterable[Node], backend: Backend) -> dict[str, str]:
    """op -> why, of the first node of each op that the backend does not take."""
    found: dict[str, str] = {}
    for node in nodes:
        answer = backend.supports(node)
        if not answer.ok:
            found.setdefault(node.op.name, _told(answer.why))
    return found


def _told(why: str) -> str:
    """A refusal's reasons, whatever order the kernels have in a build."""
    reasons = {reason.partition(": ")[2] or reason for reason in why.split("; ")}
    return "; ".join(sorted(reasons))


def _distinct(graphs: Iterable[Graph]) -> list[Node]:
    """Nodes that differ from all before, leaves and views aside."""
    found: dict[object, Node] = {}
    for graph in graphs:
        for node in graph.nodes:
            leaves = tuple(value is not None and value.node.is_leaf for value in node.inputs)
            key = (node.op, tuple(node.input_specs()), leaves)
            if not node.is_leaf and not node.op.view:
                found.setdefault(key, node)
    return list(found.values())
