"""The first token's embedding of every sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...backends import Pools
from ...graph.errors import RequestError
from ...models.arch.origin import OriginSpec
from ...models.memories import Capacity
from .base import Memory, Reservation
from .filling import Filler, Part
from .layout import Demand, Layout, MemoryBytes, lays_out

NAME = "origin"


class Origins(Memory):
    """Row `seq` of the state, written by the pass that has position 0; nothing has to be undone."""

    def __init__(self, n_seqs: int, pools: Pools) -> None:
        super().__init__(n_seqs)
        self.pools = pools

    def fillers(self, inputs: Mapping[str, np.ndarray]) -> list[Filler]:
        """Of both inputs."""
        return [_Rows(inputs["origin_write"], inputs["origin_read"])]

    def refusal(self, batch: Sequence[Reservation]) -> str:
        """None."""
        return ""

    def can_commit(self, seq: int, n: int) -> bool:
        """Any number."""
        return 0 <= n <= self._pending[seq]

    def can_remove(self, seq: int, start: int) -> bool:
        """Any suffix."""
        return not self._pending[seq] and 0 <= start <= self._length[seq]

    def max_rollback(self, seq: int) -> int:
        """All pending tokens."""
        return self._pending[seq]

    def save(self, seq: int) -> dict[str, np.ndarray]:
        """The row, f32 [width]."""
        return {NAME: self.pools.read(NAME, (seq,))}

    def check_restore(self, seq: int, length: int, arrays: Mapping[str, np.ndarray]) -> None:
        """One row."""
        if NAME not in arrays or arrays[NAME].shape != self.pools.specs[NAME].shape[1:]:
            raise RequestError(f"state {NAME!r} should be one row")

    def _restore(self, seq: int, length: int, arrays: Mapping[str, np.ndarray]) -> None:
        self.pools.write(NAME, (seq,), arrays[NAME])

    def _copy(self, src: int, dst: int) -> None:
        self.pools.copy(NAME, (src,), (dst,))

    def _reset(self, seq: int) -> None:
        self.pools.write(NAME, (seq,), 0)


class _Rows(Filler):
    def __init__(self, write: np.ndarray, read: np.ndarray) -> None:
        self.write, self.read = write, read

    def fill(self, i: int, part: Part, at: int) -> None:
        n = len(part.tokens)
        self.read[at : at + n] = part.seq
        self.write[at : at + n] = -1
        if n and part.first == 0:
            self.write[at] = part.seq

    def pad(self, items: int, total: int) -> None:
        self.write[total:], self.read[total:] = -1, 0


class OriginLayout(Layout):
    """A row for each sequence."""

    def size(self, c: Capacity) -> Capacity:
        """As many rows as sequences."""
        return replace(c, others=(*c.others, ("origins", self.demand.n_seqs)))

    def nbytes(self, c: Capacity) -> MemoryBytes:
        """All rows."""
        return MemoryBytes(attention=sum(s.nbytes for s in self.spec.states(c).values()))

    def make(self, pools: Pools, c: Capacity) -> Origins:
        """No sequence has a first token."""
        return Origins(self.demand.n_seqs, pools)


@lays_out(OriginSpec)
def origin_layouts(spec: OriginSpec, demand: Demand) -> list[Layout]:
    """There is one way."""
    return [OriginLayout(spec, demand)]
