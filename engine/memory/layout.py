"""How the memories of a session are sized before anything is allocated, and which class keeps
which kind: each registers the layouts of its own, so a new kind is a new file here."""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ...backends import Pools
from ...graph.errors import GraphError
from ...models.memories import Capacity, MemorySpec
from .base import Memory

if TYPE_CHECKING:
    from .recurrent import RecurrentMemory


@dataclass(frozen=True)
class MemoryBytes:
    """Bytes of a session: attention pages, one live recurrent state for each sequence, what
    rollback needs beyond it on the device and in host memory; kept: one state along a prompt."""

    attention: int = 0
    recurrent: int = 0
    rollback: int = 0
    host: int = 0
    kept: int = 0

    @property
    def device(self) -> int:
        """What the session's pools take."""
        return self.attention + self.recurrent + self.rollback

    def __add__(self, other: MemoryBytes) -> MemoryBytes:
        return MemoryBytes(
            self.attention + other.attention,
            self.recurrent + other.recurrent,
            self.rollback + other.rollback,
            self.host + other.host,
            self.kept + other.kept,
        )


@dataclass(frozen=True)
class Demand:
    """What a session asks of each of its memories. n_ctx: tokens of the longest sequence; most:
    tokens of a pass; rollback, n_rs_seq: how recurrent state forgets, and how many tokens; on_host:
    whether states lie in host memory; n_pages: pages of attention memory in all, None for the whole
    context of every sequence."""

    n_ctx: int
    n_seqs: int
    most: int
    rollback: str = "auto"
    n_rs_seq: int = 0
    on_host: bool = True
    n_pages: int | None = None


class Layout(ABC):
    """One memory of a session. strategy: how it rolls back, for those that have a choice."""

    strategy: type[RecurrentMemory] | None = None

    def __init__(self, spec: Any, demand: Demand) -> None:
        self.spec, self.demand = spec, demand

    @abstractmethod
    def size(self, c: Capacity) -> Capacity:
        """The session's capacity with what this memory needs."""

    @abstractmethod
    def nbytes(self, c: Capacity) -> MemoryBytes:
        """What it takes in a session of this capacity."""

    @abstractmethod
    def make(self, pools: Pools, c: Capacity) -> Memory:
        """The memory, over the session's pools."""

    def affordable(self, c: Capacity, budget: int) -> bool:
        """Whether to take this one rather than the next of several that would do."""
        return True


Choices = Callable[[Any, Demand], Sequence[Layout]]
CHOICES: dict[type[MemorySpec], Choices] = {}
C = TypeVar("C", bound=Choices)


def lays_out(kind: type[MemorySpec]) -> Callable[[C], C]:
    """Decorator: this function gives the layouts that would do for specs of a kind, best first.

    Raises GraphError for a kind that has one."""

    def register(choices: C) -> C:
        if kind in CHOICES:
            raise GraphError(f"memory of kind {kind.__name__} is laid out twice")
        CHOICES[kind] = choices
        return choices

    return register


def layouts(spec: MemorySpec, demand: Demand) -> Sequence[Layout]:
    """What would do for a spec, best first. Raises GraphError for kinds that no file here keeps."""
    folder = importlib.import_module(__package__)
    for info in sorted(pkgutil.iter_modules(folder.__path__), key=lambda m: m.name):
        importlib.import_module(f"{__package__}.{info.name}")
    if type(spec) not in CHOICES:
        known = ", ".join(sorted(kind.__name__ for kind in CHOICES))
        raise GraphError(
            f"no memory in engine/memory keeps {type(spec).__name__}; known kinds: {known}"
        )
    return CHOICES[type(spec)](spec, demand)
