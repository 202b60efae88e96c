"""What backends made of compiled kernels share: nodes as the C ABI describes them, the choice of
kernels, places of values in buffers, weights in the layouts that kernels read.

A module of kernels (`_cpu`, `_cuda`) has Node, Plan, a table of kernels with rows() and
find(node, exact), and packers."""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..graph import Graph, HostTensor, Node, TensorSpec, Value
from ..graph.dtype import DType
from ..graph.errors import Unsupported
from ..graph.memory import Place, plan_memory
from ..graph.passes.expand import expand, expansion
from ..graph.passes.fuse import fuse
from .base import Backend, Plan, Support, aligned, prepare

FUSE = "RIVERRUN_FUSE"  # 0: nodes run as the graph has them
PLAIN = 0  # the layout of the file
_GROUP = 16  # rows that a packed layout interleaves
_PIECE = 1 << 22  # bytes of a weight that are packed at a time
_MOST_CHOICES = 4096  # that a backend remembers
# Variables by which kernels decide what they take.
_DECIDING = ("RIVERRUN_CUDA_CHUNKED", "RIVERRUN_EMULATE_CAPABILITY", "RIVERRUN_EMULATE_SHARED")
_U8_ID = 1000  # the C ABI's id for a type that ggml has none for


def type_id(dtype: DType) -> int:
    """The C ABI's number of a type."""
    return dtype.ggml_id if dtype.ggml_id >= 0 else _U8_ID


def _describe(spec: TensorSpec | None, layout: int = PLAIN) -> tuple[Any, ...] | None:
    if spec is None:
        return None
    return type_id(spec.dtype), layout, spec.shape, spec.byte_strides


@dataclass
class Packing:
    """A weight's way into a packed layout, one matrix (the last two axes) after the other, in
    pieces of some MiB."""

    module: Any
    tensor: HostTensor
    layout: int

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        *lead, rows, _ = self.tensor.spec.shape
        return math.prod(lead) * self._bytes(rows)

    def pack(self, room: Callable[[int, int], np.ndarray]) -> Iterator[tuple[int, np.ndarray]]:
        """Pack each piece into what `room` gives for its place and its bytes; both, once it is
        there.

        Of a mapped file, what was packed leaves memory piece by piece, so that no weight is there
        twice."""
        spec, (*lead, rows, cols) = self.tensor.spec, self.tensor.spec.shape
        count, kind = math.prod(lead), type_id(spec.dtype)
        raw, give_back = self.tensor.raw, self.tensor.give_back
        to, seen, whole = 0, 0, self.nbytes
        for at, n in _pieces(count, rows, spec.nbytes):
            start, end = (spec.nbytes * i // (count * rows) for i in (at, at + n))
            taken = self._bytes(n)
            piece = room(to, taken)
            self.module.pack(kind, self.layout, raw[start:end], piece, n, cols)
            yield to, piece
            to += taken
            if give_back and (end - seen >= _PIECE or to == whole):
                give_back(raw[seen:end])
                seen = end

    def _bytes(self, rows: int) -> int:
        kind, cols = type_id(self.tensor.spec.dtype), self.tensor.spec.shape[-1]
        return int(self.module.packed_bytes(kind, self.layout, rows, cols))


def packed(module: Any, tensor: HostTensor, layout: int) -> np.ndarray:
    """A weight in a packed layout."""
    packing = Packing(module, tensor, layout)
    made = aligned(packing.nbytes, filled=True)
    for _ in packing.pack(lambda at, size: made[at : at + size]):
        pass
    return made


def _pieces(count: int, rows: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """First row and number of rows of pieces of about _PIECE bytes: groups of _GROUP rows of one
    matrix, which layouts keep apart."""
    most = max(_PIECE * count * rows // max(nbytes, 1) // _GROUP, 1) * _GROUP
    for matrix in range(count):
        for first in range(0, rows, most):
            yield matrix * rows + first, min(most, rows - first)


@dataclass(frozen=True)
class Choice:
    """What runs a node: the module's node, the kernel (its op, isa, priority, row_exact,
    prompt_exact and bound; None where none takes the node), the layout of each input, and else why
    kernels refused."""

    node: Any
    kernel: Any
    layouts: Sequence[int]
    why: str = ""

    @property
    def packed(self) -> bool:
        """Whether a weight is read rearranged."""
        return any(layout != PLAIN for layout in self.layouts)


class NativePlan(Plan):
    """Kernels chosen, places assigned. buffers: (kind, name, layout) -> number; choices: what runs
    each node that is neither leaf nor view, in order; `native` is the module's plan."""

    def __init__(self, graph: Graph, kind: str, backend: NativeBackend) -> None:
        super().__init__(graph, kind)
        self.backend = backend
        self.memory = plan_memory(graph)
        self.buffers: dict[tuple[str, str, int], int] = {("arena", "", PLAIN): 0}
        self.labels: list[str] = []
        self.choices: list[Choice] = []
        nodes = [n for n in graph.nodes if not n.is_leaf and not n.op.view]
        chosen = backend.choose_all(nodes, kind == "step")
        steps = [self._step(n, chosen[n.id]) for n in nodes]
        for value in graph.outputs.values():
            self._locate(value, PLAIN)
        kernels = [choice.kernel for choice in self.choices]
        self.chosen = [(k.op, k.isa, k.priority, k.row_exact) for k in kernels]
        self.prompt_grid = self._prompt_grid()
        self.native = backend.native_plan(steps, len(self.buffers))
        self._constants: Any = backend.load_weights(graph.data)

    def _prompt_grid(self) -> int:
        kernels = [choice.kernel for choice in self.choices]
        if all(kernel.row_exact for kernel in kernels):
            return 1
        exact = all(kernel.prompt_exact for kernel in kernels)
        return int(self.backend.module.prompt_grid) if exact else 0

    def source(self, weights: Any, name: str) -> Any:
        """Where a constant's data are: the given weights, or the graph itself."""
        return weights if name in weights.tensors else self._constants

    def own_weights(self) -> Any:
        """The constants given while building."""
        return self._constants

    def _step(self, node: Node, chosen: Choice) -> tuple[Any, ...]:
        if chosen.kernel is None:
            why = f"no kernel takes {node.op.name} ({node.describe()}): {chosen.why}"
            raise Unsupported(f"{self.backend.name}: {why}")
        self.choices.append(chosen)
        sources = [
            self._locate(v, layout) if v is not None else None
            for v, layout in zip(node.inputs, chosen.layouts, strict=True)
        ]
        targets = [self._locate(node.value(i), PLAIN) for i in range(len(node.specs))]
        self.labels.append(f"{node.op.name} {node.name}".strip())
        where = node.describe()
        return chosen.node, chosen.kernel, sources, targets, where, node.op.rowwise

    def _locate(self, value: Value, layout: int) -> tuple[int, int]:
        place: Place = self.memory.places[value]
        key = (place.kind, place.name, layout)
        return self.buffers.setdefault(key, len(self.buffers)), place.offset


class NativeBackend(Backend):
    """A device whose kernels are compiled."""

    module: Any  # the extension module
    table: Any  # its table of kernels
    packed_layouts: Sequence[int] = ()  # that constants are offered in before the plain one
    packs_tables = False  # whether those of which single rows are read are offered so, too
    _choices: dict[Any, Choice]

    @abstractmethod
    def native_plan(self, steps: list[tuple[Any, ...]], n_buffers: int) -> Any:
        """The module's plan of these steps."""

    def use(self, table: Any) -> None:
        """Take the kernels of a table."""
        self.table, self.kernels, self._choices = table, table.rows(), {}

    @property
    def row_exact(self) -> bool:
        """Whether all kernels are row-exact."""
        return all(kernel["row_exact"] for kernel in self.kernels)

    def choose_all(self, nodes: Sequence[Node], exact: bool = False) -> dict[int, Choice]:
        """What `choose` gives for each node of a graph, by its id."""
        found: dict[int, Choice] = {}
        packed: set[tuple[str, int]] = set()
        # Products first: they say what is packed anyway.
        for node in sorted(nodes, key=lambda node: bool(node.op.looked_up)):
            found[node.id] = choice = self.choose(node, exact, packed)
            packed |= {
                (value.node.name, layout)
                for value, layout in zip(node.inputs, choice.layouts, strict=False)
                if value is not None and layout != PLAIN
            }
        return found

    def choose(
        self, node: Node, exact: bool = False, packed: Container[tuple[str, int]] = ()
    ) -> Choice:
        """The kernel for a node, and how it reads it.

        Constants are offered packed first, then as they are in the file; those of which a run
        reads single rows packed only where their name and layout are among `packed`, unless the
        backend packs tables. exact: kernels that are not row-exact only where no other takes the
        node."""
        if node.op.looked_up and not self.packs_tables:
            return self._choose(node, exact, packed)
        # A model's layers, and the fusing of their nodes, ask the same again and again.
        constants: tuple[bool, ...] = ()
        if node.op.constants:
            constants = tuple([v is not None and v.node.op.name == "constant" for v in node.inputs])
        set_to = (*self.packed_layouts, *map(os.environ.get, _DECIDING))
        key = (node.op, node.input_specs(), node.specs, constants, set_to, exact)
        choice = self._choices.get(key)
        if choice is None:
            choice = self._choose(node, exact, packed)
            if len(self._choices) >= _MOST_CHOICES:
                self._choices.clear()
            self._choices[key] = choice
        return choice

    def _choose(self, node: Node, exact: bool, packed: Container[tuple[str, int]]) -> Choice:
        why = ""
        for layouts in self._layouts(node, packed):
            inputs = [_describe(s, at) for s, at in zip(node.input_specs(), layouts, strict=True)]
            outputs = [_describe(s) for s in node.specs]
            native = self.module.Node(node.op.name, inputs, outputs, node.op.attributes())
            kernel, why = self.table.find(native, exact)
            if kernel is not None:
                return Choice(native, kernel, layouts)
        return Choice(None, None, (), why)

    def _layouts(self, node: Node, read: Container[tuple[str, int]]) -> list[list[int]]:
        """The layouts of all inputs to try, in order. read: packed constants that there are."""
        plain = [PLAIN] * len(node.inputs)
        if not node.op.constants:
            return [plain]
        names, tried = node.op.input_names(), []
        for layout in self.packed_layouts:
            packed = list(plain)
            for i, value in enumerate(node.inputs):
                if value is None or value.node.op.name != "constant":
                    continue
                name = names[min(i, len(names) - 1)]
                looked_up = name in node.op.looked_up and not self.packs_tables
                if looked_up and (value.node.name, layout) not in read:
                    continue
                if name in node.op.constants and value.spec.rank in (2, 3):
                    kind = type_id(value.dtype)
                    if self.module.packed_bytes(kind, layout, *value.shape[-2:]):
                        packed[i] = layout
            if any(packed):
                tried.append(packed)
        return [*tried, plain]

    def supports(self, node: Node) -> Support:
        """Whether kernels that this device can run take the node, or what it expands to."""
        why = self._lacks(node)
        parts = expansion(node) if why else None
        if parts is None:
            return Support(not why, why)
        for part in expand(parts, self._has_kernel).nodes:
            if lack := self._lacks(part):
                return Support(False, f"{why}; expanded: {part.op.name}: {lack}")
        return Support(True)

    def _lacks(self, node: Node) -> str:
        """Why no kernel takes a node, "" when one does or none is needed."""
        if node.is_leaf or node.op.view:
            return ""
        chosen = self.choose(node)
        return "" if chosen.kernel is not None else chosen.why or "refused"

    def _has_kernel(self, node: Node) -> bool:
        return not self._lacks(node)

    def _ready(self, graph: Graph, kind: str) -> Graph:
        """The graph with those fused nodes expanded that no kernel takes, and others fused."""
        whole = expand(prepare(graph, kind), self._has_kernel)
        if os.environ.get(FUSE, "1") == "0":
            return whole
        ops = {kernel["op"] for kernel in self.kernels}
        return fuse(whole, ops, _Fusing(self, kind == "step").takes)


class _Fusing:
    """What a backend fuses in a plan. exact: as in `choose`."""

    def __init__(self, backend: NativeBackend, exact: bool) -> None:
        self.backend, self.exact = backend, exact
        self._ranks: dict[Node, tuple[bool, int] | None] = {}
        self._best: dict[str, tuple[bool, int]] = {}
        for kernel in backend.kernels:
            best = self._best.get(kernel["op"], (True, 0))
            self._best[kernel["op"]] = max(best, (True, kernel["priority"]))

    def takes(self, node: Node, parts: Sequence[Node]) -> bool:
        """Whether a kernel takes a node, and is no worse than those of the nodes it stands for: as
        exact, where that counts, and of no lower priority."""
        rank = self._rank(node)
        if rank is None or len(parts) == 1:
            return rank is not None
        # Most parts are of ops none of whose kernels is better.
        doubtful = [part for part in parts if rank < self._best.get(part.op.name, rank)]
        others = [self._rank(part) for part in doubtful]
        return all(other is None or rank >= other for other in others)

    def _rank(self, node: Node) -> tuple[bool, int] | None:
        if node not in self._ranks:
            kernel = self.backend.choose(node, self.exact).kernel
            exact = not self.exact or (kernel is not None and kernel.row_exact)
            self._ranks[node] = None if kernel is None else (exact, kernel.priority)
        return self._ranks[node]
