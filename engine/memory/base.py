"""The contract of every memory. A pass reserves tokens, runs, and commits how many of them stay.

Queries and acts agree: `can_commit` and `can_remove` say what `commit` and `remove` will do, and a
call that is refused changes nothing.

An exception may come at any line, a KeyboardInterrupt too. Sequences that the call does not change
stay right, the source of a copy among them, and `reset` makes the others empty and usable again. A
`reserve`, `copy` or `restore` that fails, for want of memory say, is as if it had not been."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...backends.base import KeptParts, Parts
from ...graph.errors import RequestError
from .filling import Filler


class Reservation(NamedTuple):
    """n new tokens of a sequence; the first `sure` of them will certainly be kept, which spares
    the cost of being able to forget them. again: committed tokens of `Memory.rerun` that the pass
    runs before them; with new tokens, all of those."""

    seq: int
    n: int
    sure: int = 0
    again: int = 0


class Copied(NamedTuple):
    """What rollback has copied so far: bytes between states and host memory, seconds of all."""

    host_bytes: int = 0
    seconds: float = 0.0


class Memory(ABC):
    """Memory of n_seqs sequences, numbered from 0."""

    reruns: bool = False  # whether committed tokens run again after a rejection
    forgets_last: bool = True  # whether the last token can go without others running again
    shares: bool = False  # whether texts can be parked, and shared by sequences

    def __init__(self, n_seqs: int) -> None:
        self.n_seqs = n_seqs
        self._length = [0] * n_seqs
        self._pending = [0] * n_seqs

    def length(self, seq: int) -> int:
        """Committed tokens of a sequence."""
        return self._length[seq]

    def pending(self, seq: int) -> int:
        """Reserved tokens that are not committed yet; they may come from several passes."""
        return self._pending[seq]

    def rerun(self, seq: int) -> int:
        """How many of the last committed tokens must run again in front of the next pass."""
        return 0

    def unsettled(self, seq: int) -> bool:
        """Whether a pass without new tokens has something to complete."""
        return False

    def fillers(self, inputs: Mapping[str, np.ndarray]) -> list[Filler]:
        """What fills this memory's inputs of a bound plan, where it has some."""
        return []

    def copied(self) -> Copied:
        """What rollback has cost."""
        return Copied()

    def folded(self, seq: int) -> int:
        """Tokens of earlier passes that the last pass brought into the state."""
        return 0

    @abstractmethod
    def refusal(self, batch: Sequence[Reservation]) -> str:
        """Why `reserve` would refuse; empty when it would not."""

    def lacking(self, batch: Sequence[Reservation]) -> int:
        """Pages that `reserve` would find missing, 0 where memory is not shared in pages."""
        return 0

    def surely_fits(self, n: int) -> bool:
        """Whether passes of one or two tokens of n sequences find room, as far as that is quickly
        said."""
        return True

    def spare(self, seq: int) -> int | None:
        """Tokens behind the last one for which a sequence needs no further page; None for any."""
        return None

    def growing(self, lengths: Mapping[int, int], more: int = 0) -> int:
        """Pages missing for sequences to grow to these lengths, and for `more` pages beside them,
        counted from nothing: what only these sequences hold counts as free."""
        return 0

    def page_counts(self, without: Iterable[int]) -> tuple[int, int]:
        """Pages in all, and those that would be free if these sequences held none."""
        return 0, 0

    def reserve(self, batch: Sequence[Reservation]) -> None:
        """Make room for more tokens of each sequence, all or nothing. Raises RequestError."""
        why = self.refusal(batch)
        if why:
            raise RequestError(why)
        self._apply(batch, self._prepare(batch))

    def _prepare(self, batch: Sequence[Reservation]) -> Any:
        """All of `reserve` that can fail, such as copies, without an effect on any sequence.

        Leaves nothing behind when it raises."""
        return None

    def _abandon(self, prepared: Any) -> None:  # noqa: B027
        """Undo `_prepare`."""

    def _apply(self, batch: Sequence[Reservation], prepared: Any) -> None:
        """The rest of `reserve`: changes of bookkeeping, which cannot fail."""
        for item in batch:
            self._pending[item.seq] += item.n

    @abstractmethod
    def can_commit(self, seq: int, n: int) -> bool:
        """Whether the first n pending tokens can stay and the others be forgotten."""

    def commit(self, seq: int, n: int) -> int:
        """Keep the first n pending tokens, forget the others; returns `rerun`.

        Raises RequestError if it cannot."""
        if not self.can_commit(seq, n):
            raise RequestError(
                f"sequence {seq}: cannot keep {n} of {self._pending[seq]} pending tokens; at most "
                f"{self.max_rollback(seq)} can be forgotten"
            )
        self._commit(seq, n)
        return self.rerun(seq)

    def commit_all(self, batch: Sequence[Reservation]) -> None:
        """Keep all tokens of a reservation in front of which nothing was pending; no memory refuses
        that."""
        for item in batch:
            self._commit(item.seq, item.n)

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
                + (f", {self._pending[seq]} are pending" if self._pending[seq] else "")
            )
        self._remove(seq, start)

    def _remove(self, seq: int, start: int) -> None:
        self._length[seq] = start

    def lose(self, seq: int) -> None:
        """A pass with this sequence failed half way: pending tokens are forgotten, and whatever
        it may have damaged is rebuilt by running committed tokens again."""
        self._pending[seq] = 0

    def lose_last(self, seq: int, n: int) -> None:
        """Like `lose`, of passes whose n tokens were committed before it showed that they failed:
        these are forgotten, too."""
        self.lose(seq)
        self._remove(seq, self._length[seq] - n)

    def reset(self, seq: int) -> None:
        """Empty a sequence whatever state an exception has left it in, and repair what it shared
        with others. Goes by nothing that the sequence says of itself; may be repeated."""
        self._reset(seq)
        self._length[seq] = self._pending[seq] = 0

    @abstractmethod
    def _reset(self, seq: int) -> None:
        """`reset` without the counters."""

    @abstractmethod
    def max_rollback(self, seq: int) -> int:
        """The most pending tokens that commit can forget."""

    def copy(self, src: int, dst: int) -> None:
        """Let the empty sequence dst go on from what src holds, which is settled.

        Raises RequestError when dst is not empty or tokens of either are pending."""
        if src == dst or self._length[dst] or self._pending[dst] or self._pending[src]:
            raise RequestError(
                f"cannot copy sequence {src} to {dst}: the target should be another, empty "
                f"sequence and nothing pending, got {self._length[dst]} tokens and "
                f"{self._pending[src]} pending; clear or commit first"
            )
        try:
            self._copy(src, dst)
            self._length[dst] = self._length[src]
        except BaseException:
            self.reset(dst)
            raise

    @abstractmethod
    def _copy(self, src: int, dst: int) -> None:
        """Copy or share what src holds."""

    @property
    def reach(self) -> int | None:
        """How many of its tokens a sequence can always forget with `remove`; None for all."""
        return None

    def to_keep(self, seq: int) -> Parts:
        """What `rewind` takes to come back to now, with nothing pending: the parts of states that
        later tokens overwrite or push out."""
        return {}

    def can_rewind(self, seq: int, start: int, kept: KeptParts) -> bool:
        """Whether `rewind` can go back to `start` tokens with these."""
        return self.can_remove(seq, start)

    def rewind(self, seq: int, start: int, kept: KeptParts) -> None:
        """Forget committed tokens from position start on; kept: copies of what `to_keep` named when
        there were `start` of them. The caller has asked `can_rewind`."""
        self._remove(seq, start)

    def park(self, src: int, dst: int) -> None:  # noqa: B027
        """Let a place behind the sequences hold what src holds, for `adopt`; states that tokens
        overwrite are not held."""

    def unpark(self, place: int) -> None:  # noqa: B027
        """Empty such a place, whatever state an exception has left it in."""

    def can_adopt(self, src: int, start: int, kept: KeptParts) -> bool:
        """Whether `adopt` can, for all that src holds now."""
        return False

    def adopt(self, src: int, dst: int, start: int, kept: KeptParts) -> None:  # noqa: B027
        """Let the empty sequence dst hold the first `start` tokens of src, a sequence or a place
        behind them, which stays as it is; kept: as for `rewind`. The caller has asked
        `can_adopt`."""

    @property
    def page_bytes(self) -> int:
        """What `read_page` copies."""
        return 0

    def read_page(self, src: int, at: int, n: int) -> dict[str, np.ndarray]:
        """Copies, in host memory, of the first n rows of a page that src holds, the at-th of its
        text, by state; none of states that `recall` takes from kept parts."""
        return {}

    def can_recall(self, start: int, kept: KeptParts) -> bool:
        """Whether `recall` can: there are pages for so many tokens."""
        return False

    def recall(  # noqa: B027
        self, dst: int, start: int, pages: Sequence[Mapping[str, np.ndarray]], kept: KeptParts
    ) -> None:
        """Let the empty sequence dst hold the first `start` tokens of a text whose pages were read
        with `read_page`; kept: as for `rewind`. The caller has asked `can_recall`."""

    @abstractmethod
    def save(self, seq: int) -> dict[str, np.ndarray]:
        """Copies of what a settled sequence holds, by name."""

    def restore(self, seq: int, length: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Bring a saved sequence of this length back into an empty one.

        Raises RequestError, before anything changes, when an array is missing or misshapen."""
        if self._length[seq] or self._pending[seq]:
            raise RequestError(
                f"sequence {seq} should be empty to restore into, got {self._length[seq]} tokens; "
                "clear it first"
            )
        self.check_restore(seq, length, arrays)
        try:
            self._restore(seq, length, arrays)
            self._length[seq] = length
        except BaseException:
            self.reset(seq)
            raise

    @abstractmethod
    def check_restore(self, seq: int, length: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Raise RequestError when an array is missing or misshapen, or there is no room."""

    @abstractmethod
    def _restore(self, seq: int, length: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Write what `check_restore` has accepted."""
