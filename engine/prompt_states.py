"""Recurrent states kept along prompts: where a later prompt that parts from them can go on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

Arrays = dict[str, np.ndarray]


class PromptStates:
    """States of n_seqs sequences by position, in host memory, of at most `limit` bytes in all."""

    def __init__(self, n_seqs: int, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        self._kept: list[dict[int, Arrays]] = [{} for _ in range(n_seqs)]

    def positions(self, seq: int) -> list[int]:
        """The positions at which a state is kept, ascending."""
        return sorted(self._kept[seq])

    def add(self, seq: int, position: int, arrays: Arrays) -> None:
        """Keep a state; of others the least useful go where the limit asks for it."""
        size = _bytes(arrays)
        if position in self._kept[seq] or size > self.limit:
            return
        while self.nbytes + size > self.limit:
            self._drop(*self._least_useful(seq, position))
        self._kept[seq][position] = arrays
        self.nbytes += size

    def before(self, seq: int, position: int) -> Iterator[tuple[int, Arrays]]:
        """Kept states at or before a position, the nearest first."""
        for at in sorted((p for p in self._kept[seq] if p <= position), reverse=True):
            yield at, self._kept[seq][at]

    def cut(self, seq: int, position: int) -> None:
        """Forget states after a position: the tokens there are others now."""
        for at in [p for p in self._kept[seq] if p > position]:
            self._drop(seq, at)

    def _drop(self, seq: int, position: int) -> None:
        self.nbytes -= _bytes(self._kept[seq].pop(position))

    def _least_useful(self, seq: int, position: int) -> tuple[int, int]:
        """The state whose absence leaves the shortest stretch without any, once there is one for
        this position of seq."""
        found: list[tuple[int, int, int]] = []
        for of, kept in enumerate(self._kept):
            at = sorted({*kept, position} if of == seq else kept)
            for before, here, after in zip([0, *at[:-1]], at, [*at[1:], *at[-1:]], strict=True):
                if (of, here) != (seq, position):
                    found.append((after - before, of, here))
        return min(found)[1:]


def _bytes(arrays: Arrays) -> int:
    return sum(a.nbytes for a in arrays.values())
