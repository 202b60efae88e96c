"""Rollback by never writing what may be forgotten: a log of the recurrence's inputs.

A pass reads the committed state and logs its tokens' changes. The next pass first folds the
entries of tokens that stayed into the state, inside the same kernels."""

from __future__ import annotations

from collections.abc import Sequence

from ...backends import Pools
from ...models.memories import REPLAY
from .base import Reservation
from .recurrent import RecurrentLayout, RecurrentMemory


class Replay(RecurrentMemory):
    """Each sequence has a ring of 2 (window + 1) log entries: one half may be read while the other
    is written. The last window + 1 tokens can be forgotten, a whole pass of a draft among them;
    older ones, and those that are sure, go into the state."""

    name, inputs = "replay", REPLAY

    def __init__(self, n_seqs: int, pools: Pools, states: Sequence[str], window: int = 0) -> None:
        super().__init__(n_seqs, pools, states, window)
        self.entries = 2 * (self.window + 1)
        n = self.n_seqs
        self._first = [0] * n  # ring place of the oldest live entry
        self._done = [0] * n  # live entries of committed tokens, which come first
        self._fixed = [0] * n  # pending tokens that the state holds already
        self._data = [(0, 0, 0, 0)] * n

    @classmethod
    def layout(cls, window: int) -> RecurrentLayout:
        """Two halves of a log, each for a pass of `window` drafts."""
        return RecurrentLayout(log=2 * (window + 1))

    def numbers(self, seq: int) -> tuple[int, ...]:
        """Where the log starts; entries to fold and to hold; tokens that go into the state."""
        return self._data[seq]

    def folded(self, seq: int) -> int:
        """Entries of the log that the last pass carried out."""
        return self._data[seq][1]

    def unsettled(self, seq: int) -> bool:
        """Whether committed tokens wait in the log."""
        return self._done[seq] > 0

    def refusal(self, batch: Sequence[Reservation]) -> str:
        """Sure tokens cannot follow unsure ones."""
        for item in batch:
            if item.sure and self._pending[item.seq]:
                return (
                    f"sequence {item.seq}: {self._pending[item.seq]} tokens are pending, so no "
                    "later one is sure; commit them first"
                )
        return super().refusal(batch)

    def _advance(self, item: Reservation) -> None:
        seq, tokens = item.seq, item.again + item.n
        done, pending = self._done[seq], self._pending[seq]
        held = pending - self._fixed[seq]
        # Entries and tokens, oldest first, that this pass brings into the state.
        fold = done + max(item.again + item.sure, held + tokens - (self.window + 1), 0)
        replayed = min(fold, done + held)
        direct = fold - replayed
        left = done + held - replayed
        self._data[seq] = (self._first[seq], replayed, left, direct)
        self._first[seq] = (self._first[seq] + replayed) % self.entries
        self._fixed[seq] += max(0, fold - done - item.again)
        self._done[seq] = 0

    def can_commit(self, seq: int, n: int) -> bool:
        """At least the pending tokens that the state holds."""
        return self._fixed[seq] <= n <= self._pending[seq]

    def _commit(self, seq: int, n: int) -> None:
        self._done[seq] += n - self._fixed[seq]
        self._fixed[seq] = 0
        super()._commit(seq, n)

    def _reaches(self, seq: int, back: int) -> bool:
        return back <= self._done[seq]

    def _go_back(self, seq: int, back: int) -> None:
        self._done[seq] -= back

    def _reset(self, seq: int) -> None:
        self._first[seq] = self._done[seq] = self._fixed[seq] = 0
        self._data[seq] = (0, 0, 0, 0)
        super()._reset(seq)

    def _intact(self, seq: int) -> bool:
        _, replayed, _, direct = self._data[seq]
        return replayed == direct == self._fixed[seq] == 0

    def max_rollback(self, seq: int) -> int:
        """Pending tokens that only the log holds."""
        return self._pending[seq] - self._fixed[seq]
