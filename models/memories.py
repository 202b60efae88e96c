"""What an architecture remembers between passes, declared once: a graph makes states of it, and the
engine a memory that knows which tokens they hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..graph import DType, Graph, TensorSpec
from ..graph.dtype import f16
from ..ops.replay import NAMES

PAGE = 256  # positions in a page of attention memory
# Inputs i32 [B] of recurrent ops whose states are a ring of planes, and of those with a log beside
# their state: what ops/ssm_conv.py and ops/replay.py say of them.
RING = ("start", "head")
REPLAY = NAMES[1:]


@dataclass(frozen=True)
class Capacity:
    """The session's memory: attention pages, pages of the longest sequence, rows.

    rows: of recurrent states and of NEXT_TOKEN, no fewer than sequences; window_pages: pages of the
    layers whose attention has a window, where they have their own; planes: states kept for each
    recurrent row, 0 for one alone; log: entries of its replay log; others: sizes of other kinds of
    memory, by name."""

    n_pages: int
    pages_per_seq: int
    rows: int
    k_dtype: DType = f16
    v_dtype: DType = f16
    window_pages: int = 0
    planes: int = 0
    log: int = 0
    others: tuple[tuple[str, int], ...] = ()

    def size(self, name: str) -> int:
        """A size of another kind of memory. Raises KeyError where the session has none."""
        return dict(self.others)[name]


States = dict[str, TensorSpec]


class MemorySpec(ABC):
    """Memory of one kind. A class of engine/memory says which kind it keeps."""

    @property
    def label(self) -> str:
        """What tables call it."""
        return type(self).__name__.removesuffix("Spec").lower()

    @property
    @abstractmethod
    def layers(self) -> tuple[int, ...]:
        """The layers that have such memory."""

    @abstractmethod
    def layer_states(self, layer: int, c: Capacity) -> States:
        """The states of one layer, by name."""

    def states(self, c: Capacity) -> States:
        """The states of all layers, by name."""
        return {k: v for layer in self.layers for k, v in self.layer_states(layer, c).items()}


class Heads(NamedTuple):
    """Key-value heads of a layer, and elements of a key and of a value."""

    n: int
    dim_k: int
    dim_v: int


@dataclass(frozen=True)
class AttentionSpec(MemorySpec):
    """Keys and values. heads: by layer; window: how many positions their queries see, 0 for all.

    States cache_k.LAYER and cache_v.LAYER, [pages * PAGE, heads, dim]; inputs kv_rows i32 [N], the
    row that a token's key and value go to, < 0 for none, and block_table i32 [B, P], the pages of
    each sequence, with `suffix` behind their names."""

    heads: Mapping[int, Heads]
    window: int = 0

    @property
    def label(self) -> str:
        """With or without a window."""
        return "attention with a window" if self.window else "attention"

    @property
    def layers(self) -> tuple[int, ...]:
        """Those with heads."""
        return tuple(self.heads)

    @property
    def suffix(self) -> str:
        """What the names of inputs end with."""
        return suffix(self.window)

    def layer_states(self, layer: int, c: Capacity) -> States:
        """Keys, values."""
        return attention_states(layer, self.heads[layer], self.window, c)


def suffix(window: int) -> str:
    """What the inputs' names of layers with this window end with."""
    return "_window" if window else ""


def attention_states(layer: int, heads: Heads, window: int, c: Capacity) -> States:
    """Keys and values of a layer, in this order."""
    rows = (c.window_pages if window and c.window_pages else c.n_pages) * PAGE
    return {
        f"cache_k.{layer}": TensorSpec((rows, heads.n, heads.dim_k), c.k_dtype),
        f"cache_v.{layer}": TensorSpec((rows, heads.n, heads.dim_v), c.v_dtype),
    }


class RecurrentPart(NamedTuple):
    """One state of a recurrent layer. width: its elements for a sequence; entry: elements that its
    op logs for a token."""

    name: str
    width: int
    entry: int

    def state(self, layer: int, c: Capacity) -> tuple[str, TensorSpec]:
        """Name and spec, f32 [rows, width] or [rows, planes, width]."""
        planes = (c.planes,) if c.planes else ()
        return f"{self.name}_state.{layer}", TensorSpec((c.rows, *planes, self.width))

    def log(self, layer: int, c: Capacity) -> tuple[str, TensorSpec]:
        """Name and spec of its log, f32 [rows, log, entry]."""
        return f"{self.name}_log.{layer}", TensorSpec((c.rows, c.log, self.entry))


@dataclass(frozen=True)
class RecurrentSpec(MemorySpec):
    """States that each token changes. The inputs: state_rows i32 [B], and RING or REPLAY."""

    at: tuple[int, ...]
    parts: tuple[RecurrentPart, ...]

    @property
    def label(self) -> str:
        """With the names of its parts."""
        return f"recurrent ({', '.join(part.name for part in self.parts)})"

    @property
    def layers(self) -> tuple[int, ...]:
        """The recurrent ones."""
        return self.at

    def layer_states(self, layer: int, c: Capacity) -> States:
        """The parts' states, then their logs."""
        logs = [part.log(layer, c) for part in self.parts] if c.log else []
        return dict([*(part.state(layer, c) for part in self.parts), *logs])

    def live(self, c: Capacity) -> States:
        """The states without the logs."""
        return dict(part.state(layer, c) for layer in self.at for part in self.parts)


@dataclass(frozen=True)
class Program:
    """Something that a model can run. build: its graph, from a StepShape, a Capacity and the specs
    of the file's tensors; memories: what it reads and writes; picks: it picks tokens, so that
    `build` takes the tokenizer's number of them, too."""

    build: Callable[..., Graph]
    memories: tuple[MemorySpec, ...]
    picks: bool = False

    def graph(
        self, shape: object, capacity: Capacity, weights: dict[str, TensorSpec], n_vocab: int
    ) -> Graph:
        """Its graph for these sizes. shape: a StepShape."""
        return self.build(shape, capacity, weights, *((n_vocab,) if self.picks else ()))
