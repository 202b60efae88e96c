"""Several memories that act as one: all of them or none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...backends.base import Index, KeptParts, Parts
from .base import Copied, Memory, Reservation
from .filling import Filler


class HybridMemory(Memory):
    """Fans out to its parts. Parts are asked before any of them changes."""

    def __init__(self, parts: Sequence[Memory]) -> None:
        super().__init__(min(part.n_seqs for part in parts))
        self.parts = list(parts)
        self.reruns = any(part.reruns for part in parts)
        self.shares = all(part.shares for part in parts)
        self.forgets_last = all(part.forgets_last for part in parts)

    def copied(self) -> Copied:
        """By all parts."""
        found = [part.copied() for part in self.parts]
        return Copied(sum(c.host_bytes for c in found), sum(c.seconds for c in found))

    def fillers(self, inputs: Mapping[str, np.ndarray]) -> list[Filler]:
        """Those of all parts."""
        return [filler for part in self.parts for filler in part.fillers(inputs)]

    def folded(self, seq: int) -> int:
        """That of the parts which log tokens."""
        return max(part.folded(seq) for part in self.parts)

    def rerun(self, seq: int) -> int:
        """What the neediest part asks for."""
        most = 0
        for part in self.parts:  # no generator: rounds ask several times for each sequence
            n = part.rerun(seq)
            if n > most:
                most = n
        return most

    def unsettled(self, seq: int) -> bool:
        """Whether any part is."""
        return any(p.unsettled(seq) for p in self.parts)

    def refusal(self, batch: Sequence[Reservation]) -> str:
        """The first part's reason."""
        for part in self.parts:
            why = part.refusal(batch)
            if why:
                return why
        return ""

    def lacking(self, batch: Sequence[Reservation]) -> int:
        """Of the part that misses most."""
        return max(part.lacking(batch) for part in self.parts)

    def surely_fits(self, n: int) -> bool:
        """In every part."""
        return all(part.surely_fits(n) for part in self.parts)

    def spare(self, seq: int) -> int | None:
        """What every part has."""
        found = [part.spare(seq) for part in self.parts]
        return min((n for n in found if n is not None), default=None)

    def growing(self, lengths: Mapping[int, int], more: int = 0) -> int:
        """Of the part that misses most."""
        return max(part.growing(lengths, more) for part in self.parts)

    def page_counts(self, without: Iterable[int]) -> tuple[int, int]:
        """Of all parts."""
        seqs = list(without)
        found = [part.page_counts(seqs) for part in self.parts]
        return sum(n for n, _ in found), sum(free for _, free in found)

    def _prepare(self, batch: Sequence[Reservation]) -> list[Any]:
        done: list[Any] = []
        try:
            for part in self.parts:
                done.append(part._prepare(batch))
        except BaseException:
            self._abandon(done)
            raise
        return done

    def _abandon(self, prepared: list[Any]) -> None:
        for part, own in zip(self.parts, prepared, strict=False):
            part._abandon(own)

    def _apply(self, batch: Sequence[Reservation], prepared: list[Any]) -> None:
        for part, own in zip(self.parts, prepared, strict=True):
            part._apply(batch, own)
        super()._apply(batch, prepared)

    def can_commit(self, seq: int, n: int) -> bool:
        """Whether every part can."""
        return all(p.can_commit(seq, n) for p in self.parts)

    def commit_all(self, batch: Sequence[Reservation]) -> None:
        """Every part keeps them."""
        for seq, n, *_ in batch:
            self._length[seq] += n
            self._pending[seq] = 0
        for part in self.parts:
            part.commit_all(batch)

    def _commit(self, seq: int, n: int) -> None:
        super()._commit(seq, n)
        for part in self.parts:
            part._commit(seq, n)

    def can_remove(self, seq: int, start: int) -> bool:
        """Whether every part can."""
        return all(p.can_remove(seq, start) for p in self.parts)

    def _remove(self, seq: int, start: int) -> None:
        super()._remove(seq, start)
        for part in self.parts:
            part._remove(seq, start)

    def lose(self, seq: int) -> None:
        """Every part loses it."""
        super().lose(seq)
        for part in self.parts:
            part.lose(seq)

    def lose_last(self, seq: int, n: int) -> None:
        """Every part loses them."""
        self._pending[seq] = 0
        self._length[seq] -= n
        for part in self.parts:
            part.lose_last(seq, n)

    def _reset(self, seq: int) -> None:
        for part in self.parts:
            part.reset(seq)

    def max_rollback(self, seq: int) -> int:
        """What the weakest part allows."""
        return min(p.max_rollback(seq) for p in self.parts)

    def _copy(self, src: int, dst: int) -> None:
        for part in self.parts:
            part.copy(src, dst)

    @property
    def reach(self) -> int | None:
        """That of the part which reaches least."""
        found = [part.reach for part in self.parts if part.reach is not None]
        return min(found, default=None)

    def to_keep(self, seq: int) -> Parts:
        """That of all parts."""
        found: dict[str, Sequence[Index]] = {}
        for part in self.parts:
            found |= part.to_keep(seq)
        return found

    def can_rewind(self, seq: int, start: int, kept: KeptParts) -> bool:
        """Whether every part can."""
        return all(p.can_rewind(seq, start, kept) for p in self.parts)

    def rewind(self, seq: int, start: int, kept: KeptParts) -> None:
        """Every part goes back."""
        for part in self.parts:
            part.rewind(seq, start, kept)
        super()._remove(seq, start)

    def park(self, src: int, dst: int) -> None:
        """In every part."""
        for part in self.parts:
            part.park(src, dst)

    def unpark(self, place: int) -> None:
        """In every part."""
        for part in self.parts:
            part.unpark(place)

    def can_adopt(self, src: int, start: int, kept: KeptParts) -> bool:
        """Whether every part can."""
        return all(part.can_adopt(src, start, kept) for part in self.parts)

    def adopt(self, src: int, dst: int, start: int, kept: KeptParts) -> None:
        """Every part does."""
        try:
            for part in self.parts:
                part.adopt(src, dst, start, kept)
            self._length[dst] = start
        except BaseException:
            self.reset(dst)
            raise

    @property
    def page_bytes(self) -> int:
        """Of all parts."""
        return sum(part.page_bytes for part in self.parts)

    def read_page(self, src: int, at: int, n: int) -> dict[str, np.ndarray]:
        """Of all parts."""
        found: dict[str, np.ndarray] = {}
        for part in self.parts:
            found |= part.read_page(src, at, n)
        return found

    def can_recall(self, start: int, kept: KeptParts) -> bool:
        """Whether every part can."""
        return all(part.can_recall(start, kept) for part in self.parts)

    def recall(
        self, dst: int, start: int, pages: Sequence[Mapping[str, np.ndarray]], kept: KeptParts
    ) -> None:
        """Every part does."""
        try:
            for part in self.parts:
                part.recall(dst, start, pages, kept)
            self._length[dst] = start
        except BaseException:
            self.reset(dst)
            raise

    def save(self, seq: int) -> dict[str, np.ndarray]:
        """The arrays of all parts."""
        return {name: array for p in self.parts for name, array in p.save(seq).items()}

    def check_restore(self, seq: int, length: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Every part's check."""
        for part in self.parts:
            part.check_restore(seq, length, arrays)

    def _restore(self, seq: int, length: int, arrays: Mapping[str, np.ndarray]) -> None:
        for part in self.parts:
            part.restore(seq, length, arrays)
