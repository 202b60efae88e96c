"""Rollback by a copy of the state from before the pass; kept tokens run again after it."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from ...backends import Pools
from .base import Copied, Reservation
from .recurrent import RecurrentLayout, RecurrentMemory

Arrays = dict[str, np.ndarray]


class Checkpoint(RecurrentMemory):
    """The copy is made in front of the first pass whose tokens may be forgotten. When some are, it
    becomes the state again, and tokens since then are due to run again. Any number of tokens can
    be forgotten."""

    reruns = True

    def __init__(self, n_seqs: int, pools: Pools, states: Sequence[str], window: int = 0) -> None:
        super().__init__(n_seqs, pools, states, window)
        self._saved_at: list[int | None] = [None] * self.n_seqs
        self._host_bytes, self._copy_s = 0, 0.0

    def copied(self) -> Copied:
        """Copies aside and back."""
        return Copied(self._host_bytes, self._copy_s)

    def _prepare(self, batch: Sequence[Reservation]) -> dict[int, Arrays]:
        """By sequence, a copy of its state, where its tokens may be forgotten and the copy at hand
        is of another time."""
        super()._prepare(batch)
        return {
            item.seq: self._timed(self._store, item.seq)
            for item in batch
            if not self._pending[item.seq]
            and item.sure < item.n
            and self._saved_at[item.seq] != self._held_by_state(item.seq)
        }

    def _apply(self, batch: Sequence[Reservation], prepared: dict[int, Arrays]) -> None:
        for seq, arrays in prepared.items():
            self._take(seq, arrays)
            self._saved_at[seq] = self._held_by_state(seq)
        super()._apply(batch, prepared)

    def _held_by_state(self, seq: int) -> int:
        """Committed tokens that the state has seen."""
        return self._length[seq] - self._rerun[seq]

    def _kept(self, seq: int) -> bool:
        """Whether the copy is from before the pending tokens, or of an earlier time."""
        return self._saved_at[seq] is not None

    def can_commit(self, seq: int, n: int) -> bool:
        """Any number, once there is a copy."""
        pending = self._pending[seq]
        return n == pending or (0 <= n < pending and self._kept(seq))

    def _commit(self, seq: int, n: int) -> None:
        rejected = n < self._pending[seq]
        super()._commit(seq, n)
        if rejected:
            self._back_to_copy(seq, self._length[seq])

    def _reaches(self, seq: int, back: int) -> bool:
        at = self._saved_at[seq]
        return at is not None and at <= self._length[seq] - back

    def _go_back(self, seq: int, back: int) -> None:
        self._back_to_copy(seq, self._length[seq] - back)

    def _back_to_copy(self, seq: int, length: int) -> None:
        at = self._saved_at[seq]
        assert at is not None
        self._timed(self._load, seq)
        self._rerun[seq] = length - at

    def _reset(self, seq: int) -> None:
        self._saved_at[seq] = None
        super()._reset(seq)

    def lose(self, seq: int) -> None:
        """The copy lies where no pass writes, so work goes on from there."""
        if not self._kept(seq):
            super().lose(seq)
            return
        self._pending[seq] = 0
        self._back_to_copy(seq, self._length[seq])

    def max_rollback(self, seq: int) -> int:
        """All pending tokens, once there is a copy."""
        return self._pending[seq] if self._kept(seq) else 0

    def _timed(self, copy: Callable[[int], Arrays], seq: int) -> Arrays:
        began = time.perf_counter()
        arrays = copy(seq)
        self._copy_s += time.perf_counter() - began
        return arrays

    @abstractmethod
    def _store(self, seq: int) -> Arrays:
        """Copy the state aside; the copy, if it lies in host memory."""

    def _take(self, seq: int, arrays: Arrays) -> None:
        """Let this be the copy to go back to."""

    @abstractmethod
    def _load(self, seq: int) -> Arrays:
        """Copy it back; returns what `_store` does."""


class HostCheckpoint(Checkpoint):
    """The copy lies in host memory."""

    name = "checkpoint:host"
    host_copies = 1

    def __init__(self, n_seqs: int, pools: Pools, states: Sequence[str], window: int = 0) -> None:
        super().__init__(n_seqs, pools, states, window)
        self._copies: list[Arrays] = [{} for _ in range(self.n_seqs)]

    def _store(self, seq: int) -> Arrays:
        return self._counted({name: self.pools.read(name, (seq,)) for name in self.states})

    def _take(self, seq: int, arrays: Arrays) -> None:
        self._copies[seq] = arrays

    def _load(self, seq: int) -> Arrays:
        for name, array in self._copies[seq].items():
            self.pools.write(name, (seq,), array)
        return self._counted(self._copies[seq])

    def _counted(self, arrays: Arrays) -> Arrays:
        self._host_bytes += sum(array.nbytes for array in arrays.values())
        return arrays

    def _reset(self, seq: int) -> None:
        self._copies[seq] = {}
        super()._reset(seq)


class DeviceCheckpoint(Checkpoint):
    """The copy lies in a second row of the state, on its device."""

    name = "checkpoint:device"

    @classmethod
    def layout(cls, window: int) -> RecurrentLayout:
        """A row for each sequence, and one for its copy."""
        return RecurrentLayout(rows=2)

    def _store(self, seq: int) -> Arrays:
        # An older copy is gone as soon as this one begins.
        self._saved_at[seq] = None
        for name in self.states:
            self.pools.copy(name, (seq,), (self.n_seqs + seq,))
        return {}

    def _load(self, seq: int) -> Arrays:
        for name in self.states:
            self.pools.copy(name, (self.n_seqs + seq,), (seq,))
        return {}
