"""The contract of every memory. A pass reserves tokens, runs, and commits how many of them stay.

Queries and acts agree: `can_commit` and `can_remove` say what `commit` and `remove` will do, and a
call that is refused changes nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ...graph.errors import RequestError

Reservation = tuple[int, int]  # sequence, number of tokens


class Memory(ABC):
    """Memory of n_seqs sequences, numbered from 0."""

    def __init__(self, n_seqs: int) -> None:
        self.n_seqs = n_seqs
        self._length = [0] * n_seqs
        self._pending = [0] * n_seqs

    def length(self, seq: int) -> int:
        """Committed tokens of a sequence."""
        return self._length[seq]

    def pending(self, seq: int) -> int:
        """Reserved tokens that are not committed yet."""
        return self._pending[seq]

    @abstractmethod
    def reserve(self, batch: Sequence[Reservation]) -> None:
        """Make room for more tokens of each sequence, all or nothing. Raises RequestError."""

    @abstractmethod
    def can_commit(self, seq: int, n: int) -> bool:
        """Whether the first n pending tokens can stay and the others be forgotten."""

    def commit(self, seq: int, n: int) -> None:
        """Keep the first n pending tokens, forget the others. Raises RequestError if it cannot."""
        if not self.can_commit(seq, n):
            raise RequestError(
                f"sequence {seq}: cannot keep {n} of {self._pending[seq]} pending tokens"
            )
        self._commit(seq, n)

    def _commit(self, seq: int, n: int) -> None:
        self._length[seq] += n
        self._pending[seq] = 0

    @abstractmethod
    def can_remove(self, seq: int, start: int) -> bool:
        """Whether the committed tokens from position start on can be forgotten."""

    def remove(self, seq: int, start: int) -> None:
        """Forget committed tokens from position start on. Raises RequestError if it cannot."""
        if not self.can_remove(seq, start):
            raise RequestError(
                f"sequence {seq}: cannot go back from {self._length[seq]} to {start} tokens"
            )
        self._remove(seq, start)

    def _remove(self, seq: int, start: int) -> None:
        self._length[seq] = start

    @abstractmethod
    def max_rollback(self, seq: int) -> int:
        """The most pending tokens that commit can forget."""
