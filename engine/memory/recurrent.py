"""Recurrent memory: one row of convolution tail and delta-net state per sequence and layer.

The state holds every token it has seen. What is here keeps tokens all or none; the strategies in
snapshots.py, checkpoint.py and replay.py can forget some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...backends import Pools
from ...backends.base import KeptParts, Parts
from ...graph.errors import RequestError
from .base import Memory, Reservation
from .filling import Filler, Part


@dataclass(frozen=True)
class RecurrentLayout:
    """What a strategy needs of the graph: rows per sequence, planes of a row (0: no ring), entries
    of the log (0: none)."""

    rows: int = 1
    planes: int = 0
    log: int = 0


class _Numbers(Filler):
    """Inputs i32 [B] that get the numbers of each item's sequence."""

    def __init__(self, memory: RecurrentMemory, data: Sequence[np.ndarray]) -> None:
        self.memory, self.data = memory, data

    def fill(self, i: int, part: Part, at: int) -> None:
        for data, value in zip(self.data, self.memory.numbers(part.seq), strict=True):
            data[i] = value

    def fill_singles(self, seqs: np.ndarray, positions: np.ndarray) -> None:
        numbers = map(self.memory.numbers, seqs.tolist())
        for data, values in zip(self.data, zip(*numbers, strict=True), strict=True):
            data[: len(seqs)] = values

    def pad(self, items: int, total: int) -> None:
        for data in self.data:
            data[items:] = 0


class RecurrentMemory(Memory):
    """states: names of the pool states whose row `seq` belongs to sequence `seq`; window: how many
    tokens it can forget at least."""

    name: ClassVar[str] = "none"
    host_copies: ClassVar[int] = 0  # of each sequence's state, in host memory
    inputs: ClassVar[tuple[str, ...]] = ()  # what its ops read of each sequence, see `numbers`

    def __init__(self, n_seqs: int, pools: Pools, states: Sequence[str], window: int = 0) -> None:
        super().__init__(n_seqs)
        self.pools, self.states, self.window = pools, list(states), window
        self._rerun = [0] * n_seqs
        self._again = [0] * n_seqs  # what the last pass ran again
        # Empty sequences whose rows have yet to become zero, before anybody looks.
        self._blank: set[int] = set()
        self.forgets_last = window >= 1 and not self.reruns

    @classmethod
    def layout(cls, window: int) -> RecurrentLayout:
        """What the graph is to hold so that `window` tokens can be forgotten."""
        return RecurrentLayout()

    def numbers(self, seq: int) -> tuple[int, ...]:
        """The values of `inputs` for the pass that was reserved last."""
        return ()

    def fillers(self, inputs: Mapping[str, np.ndarray]) -> list[Filler]:
        """Of the strategy's inputs, where the graph has recurrent ops."""
        found = [inputs[name] for name in self.inputs if name in inputs]
        return [_Numbers(self, found)] if found else []

    def rerun(self, seq: int) -> int:
        """Committed tokens that the state has not seen."""
        return self._rerun[seq]

    def refusal(self, batch: Sequence[Reservation]) -> str:
        """Rows are fixed; new tokens come after all that have to run again."""
        for seq, n, _, again in batch:
            if again > self._rerun[seq] or (n and again != self._rerun[seq]):
                return (
                    f"sequence {seq}: {self._rerun[seq]} committed tokens should run again before "
                    f"new ones, got {again}"
                )
        return ""

    def _prepare(self, batch: Sequence[Reservation]) -> Any:
        self._write_blank()
        return super()._prepare(batch)

    def _apply(self, batch: Sequence[Reservation], prepared: Any) -> None:
        for item in batch:
            self._advance(item)
            self._pending[item.seq] += item.n
            self._rerun[item.seq] -= item.again
            self._again[item.seq] = item.again

    def _advance(self, item: Reservation) -> None:
        """A strategy's own bookkeeping of a pass, before the counters change."""

    def can_commit(self, seq: int, n: int) -> bool:
        """All pending tokens."""
        return n == self._pending[seq]

    def can_remove(self, seq: int, start: int) -> bool:
        """Nothing, everything, or what the strategy still reaches."""
        if self._pending[seq]:
            return False
        return start in (0, self._length[seq]) or (
            0 < start < self._length[seq] and self._reaches(seq, self._length[seq] - start)
        )

    def _reaches(self, seq: int, back: int) -> bool:
        """Whether the state `back` committed tokens ago can be had."""
        return False

    def _remove(self, seq: int, start: int) -> None:
        if start == 0:
            if self._length[seq]:
                self._reset(seq)
        elif start < self._length[seq]:
            self._go_back(seq, self._length[seq] - start)
        super()._remove(seq, start)

    def _go_back(self, seq: int, back: int) -> None:
        """Make the state `back` committed tokens ago the current one."""

    def _reset(self, seq: int) -> None:
        """The state before the first token, which is zero."""
        self._rerun[seq] = self._again[seq] = 0
        self._blank.add(seq)

    def _write_blank(self) -> None:
        """Make rows of empty sequences zero, adjacent ones together: there are two states a layer,
        and many sequences may begin at once."""
        if not self._blank:
            return
        for first, end in _runs(sorted(self._blank)):
            at: tuple[int | slice, ...] = slice(first, end), *self._place(first)[1:]
            for name in self.states:
                self.pools.write(name, at, 0)
        self._blank.clear()

    def _begin_with(self, seq: int) -> None:
        """Empty a sequence all of whose newest state is about to be written."""
        self._reset(seq)
        self._blank.discard(seq)

    @property
    def reach(self) -> int | None:
        """Only what a strategy happens to reach."""
        return 0

    def to_keep(self, seq: int) -> Parts:
        """The newest state, which has seen all committed tokens unless `rerun` says otherwise."""
        self._write_blank()
        return {name: (self._place(seq),) for name in self.states}

    def can_rewind(self, seq: int, start: int, kept: KeptParts) -> bool:
        """With all states at hand, or where nothing is to be forgotten."""
        if self._pending[seq] or not 0 <= start <= self._length[seq]:
            return False
        return start == self._length[seq] or all(name in kept for name in self.states)

    def rewind(self, seq: int, start: int, kept: KeptParts) -> None:
        """The kept state is the state, with nothing to go back to and nothing to run again."""
        if start < self._length[seq]:
            self._begin_with(seq)
            for name in self.states:
                self.pools.put_back(name, self._place(seq), kept[name][0])
            self._length[seq] = start

    shares = True

    def can_adopt(self, src: int, start: int, kept: KeptParts) -> bool:
        """With all states at hand."""
        return self.can_recall(start, kept)

    def adopt(self, src: int, dst: int, start: int, kept: KeptParts) -> None:
        """The kept state is the state."""
        self.recall(dst, start, (), kept)

    def can_recall(self, start: int, kept: KeptParts) -> bool:
        """With all states at hand."""
        return all(name in kept for name in self.states)

    def recall(
        self, dst: int, start: int, pages: Sequence[Mapping[str, np.ndarray]], kept: KeptParts
    ) -> None:
        """The kept state is the state."""
        self._begin_with(dst)
        for name in self.states:
            self.pools.put_back(name, self._place(dst), kept[name][0])
        self._length[dst] = start

    def lose(self, seq: int) -> None:
        """Where the pass cannot have touched the committed state, that goes on; else all committed
        tokens run again from an empty one."""
        if self._again[seq] == 0 and self._intact(seq):
            self._undo(seq)
        else:
            self._reset(seq)
            self._rerun[seq] = self._length[seq]
        super().lose(seq)

    def lose_last(self, seq: int, n: int) -> None:
        """All committed tokens but these run again from an empty state."""
        self._reset(seq)
        self._length[seq] -= n
        self._pending[seq], self._rerun[seq] = 0, self._length[seq]

    def _intact(self, seq: int) -> bool:
        """Whether the last pass left the committed state alone, wherever it broke off."""
        return False

    def _undo(self, seq: int) -> None:
        """Forget the pending tokens of an intact sequence."""

    def max_rollback(self, seq: int) -> int:
        """None."""
        return 0

    def _place(self, seq: int) -> tuple[int, ...]:
        """Where the newest settled state of a sequence lies in every state."""
        return (seq,)

    def _copy(self, src: int, dst: int) -> None:
        self._write_blank()
        self._begin_with(dst)
        for name in self.states:
            self.pools.copy(name, self._place(src), self._place(dst))

    def save(self, seq: int) -> dict[str, np.ndarray]:
        """The newest state, f32 [width] for each name."""
        self._write_blank()
        return {name: self.pools.read(name, self._place(seq)) for name in self.states}

    def check_restore(self, seq: int, length: int, arrays: Mapping[str, np.ndarray]) -> None:
        """One f32 array of a row's width for each state."""
        for name in self.states:
            width = self.pools.specs[name].shape[-1:]
            got = arrays.get(name)
            if got is None or got.shape != width or got.dtype != np.float32:
                found = "none" if got is None else f"{got.dtype} {list(got.shape)}"
                raise RequestError(f"state {name!r} should be float32 {list(width)}, got {found}")

    def _restore(self, seq: int, length: int, arrays: Mapping[str, np.ndarray]) -> None:
        self._begin_with(seq)
        for name in self.states:
            self.pools.write(name, self._place(seq), arrays[name])


def _runs(ascending: Sequence[int]) -> list[tuple[int, int]]:
    """Numbers as (first, end) of those that follow one another."""
    found: list[tuple[int, int]] = []
    for n in ascending:
        if found and found[-1][1] == n:
            found[-1] = found[-1][0], n + 1
        else:
            found.append((n, n + 1))
    return found
