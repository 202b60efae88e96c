"""Which pages of attention memory hold which positions: a block table row per sequence.

Source of paging and of shared pages: Kwon et al. 2023, "Efficient Memory Management for LLM
Serving"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...backends import Pools
from ...graph.errors import RequestError
from ...models.memories import PAGE
from ..buckets import MAX_TOKENS
from .base import Memory, Reservation
from .filling import Filler
from .paged_filling import PageFiller
from .pages import Pages, window_pages


class _Fresh(NamedTuple):
    """A page taken for a block table entry, in place of a shared page or of none."""

    seq: int
    at: int
    page: int
    shared: int | None


class PagedRows(Memory):
    """Which pages hold which positions. block_table: i32 [n_seqs, pages_per_seq].

    states: names of the pool states [n_pages * PAGE, ...] whose rows lie in these pages. Copies of
    a sequence share its pages until one of them writes. With a window, of layers whose queries at
    position p see p - window + 1 .. p, commit frees the pages that no query from position
    length - slack on sees: a sequence can go back to `slack` tokens less than the most it had.
    Table entries of pages that a sequence does not hold are 0."""

    def __init__(
        self,
        n_seqs: int,
        n_pages: int,
        n_ctx: int,
        pools: Pools | None = None,
        states: Iterable[str] = (),
        window: int = 0,
        slack: int = 0,
        suffix: str = "",
        parked: int = 0,
        most: int = MAX_TOKENS,
    ) -> None:
        """parked: places for texts behind those of the sequences, see `Memory.park`; most: tokens
        of a pass."""
        n_seqs += parked
        super().__init__(n_seqs)
        self.suffix = suffix  # of the names of its inputs
        self.n_ctx, self.window, self.slack, self.most = n_ctx, window, slack, most
        self.pages = Pages(n_pages)
        self.block_table = np.zeros((n_seqs, pages_of(n_ctx)), np.int32)
        self.pools, self.states = pools or Pools({}), list(states)
        for name in self.states:
            shape = self.pools.specs[name].shape
            if shape[0] != n_pages * PAGE:
                raise RequestError(
                    f"state {name!r} should have {n_pages * PAGE} rows, {PAGE} for each of "
                    f"{n_pages} pages, got {list(shape)}"
                )
        self._first, self._end = [0] * n_seqs, [0] * n_seqs

    def fillers(self, inputs: Mapping[str, np.ndarray]) -> list[Filler]:
        """Of kv_rows and block_table, as models.memories.AttentionSpec has them."""
        rows = inputs.get(f"kv_rows{self.suffix}")
        return [] if rows is None else [PageFiller(self, rows, inputs[f"block_table{self.suffix}"])]

    def held(self, seq: int) -> range:
        """The block table entries of the pages that a sequence holds."""
        return range(self._first[seq], self._end[seq])

    def refusal(self, batch: Sequence[Reservation]) -> str:
        """Why the new positions, and own copies of shared pages they lie in, find no room."""
        if len(batch) > 1 and len({seq for seq, *_ in batch}) < len(batch):
            return f"sequences of a pass should be distinct, got {[seq for seq, *_ in batch]}"
        for seq, n, *_ in batch:
            end = self._length[seq] + self._pending[seq] + n
            if end > self.n_ctx:
                return (
                    f"sequence {seq}: {end} tokens do not fit in a context of {self.n_ctx}; "
                    "load with a larger context (n_ctx) or shorten the prompt"
                )
        wanted = self._wanted(batch)
        return self._shortage(wanted) if wanted else ""

    def _wanted(self, batch: Sequence[Reservation]) -> int:
        """Pages for new positions, and for own copies of shared pages."""
        wanted, left, sharing = 0, dict[int, int](), self.pages.any_shared
        for seq, n, *_ in batch:
            start = self._length[seq] + self._pending[seq]
            if start + n > self._end[seq] * PAGE:
                wanted += pages_of(start + n) - self._end[seq]
            if sharing and n and start % PAGE and self._shared(seq, start, left) is not None:
                wanted += 1
        return wanted

    def lacking(self, batch: Sequence[Reservation]) -> int:
        """What is wanted beyond the free pages."""
        return max(0, self._wanted(batch) - self.pages.free)

    def surely_fits(self, n: int) -> bool:
        """With two pages for each: a further one, and a copy of a shared one."""
        return self.pages.free >= 2 * n

    def spare(self, seq: int) -> int:
        """Up to the end of the last page."""
        return self._end[seq] * PAGE - self._length[seq] - self._pending[seq]

    def growing(self, lengths: Mapping[int, int], more: int = 0) -> int:
        """Pages of all these, without those that the sequences alone hold."""
        wanted = more + sum(self._most_pages(length) for length in lengths.values())
        return max(0, wanted - self.free_without(lengths))

    def page_counts(self, without: Iterable[int]) -> tuple[int, int]:
        """In all, and free."""
        return self.pages.n, self.free_without(without)

    def free_without(self, seqs: Iterable[int]) -> int:
        """Pages that would be free if these sequences held none."""
        held = Counter(self.block_table.item(seq, at) for seq in seqs for at in self.held(seq))
        return self.pages.free + sum(self.pages.owners(page) == n for page, n in held.items())

    def _most_pages(self, length: int) -> int:
        """The most pages that a sequence holds on its way to a length."""
        most = window_pages(self.window, self.slack, self.most, self.n_ctx)
        return min(most, pages_of(length))

    def _shortage(self, wanted: int) -> str:
        if wanted <= self.pages.free:
            return ""
        return f"{wanted} attention pages needed, {self.pages.free} free; clear a sequence"

    def _shared(self, seq: int, start: int, left: dict[int, int]) -> int | None:
        """The page that position start lies in, if writing there needs an own copy. left: how many
        owners of each page have been given copies; counts this one in."""
        page = self.block_table.item(seq, start // PAGE)
        # When all but one of its owners have left it for copies, the last one keeps it.
        if self.pages.owners(page) - left.get(page, 0) <= 1:
            return None
        left[page] = left.get(page, 0) + 1
        return page

    def _prepare(self, batch: Sequence[Reservation]) -> list[_Fresh]:
        """Pages for the new positions and own copies of shared ones, not yet in the block table."""
        fresh, left, sharing = list[_Fresh](), dict[int, int](), self.pages.any_shared
        try:
            for seq, n, *_ in batch:
                start = self._length[seq] + self._pending[seq]
                shared = None
                if sharing and n and start % PAGE:
                    shared = self._shared(seq, start, left)
                if shared is not None:
                    fresh.append(_Fresh(seq, start // PAGE, self.pages.take(), shared))
                    self._copy_rows(shared, fresh[-1].page, start % PAGE)
                if start + n <= self._end[seq] * PAGE:
                    continue
                for at in range(self._end[seq], pages_of(start + n)):
                    fresh.append(_Fresh(seq, at, self.pages.take(), None))
        except BaseException:
            self._abandon(fresh)
            raise
        return fresh

    def _copy_rows(self, src: int, dst: int, n: int) -> None:
        """The first n rows of a page into another."""
        for name in self.states:
            self.pools.copy(name, page_rows(src, n), page_rows(dst, n))

    def _abandon(self, prepared: list[_Fresh]) -> None:
        for fresh in prepared:
            self.pages.give_back(fresh.page)

    def _apply(self, batch: Sequence[Reservation], prepared: list[_Fresh]) -> None:
        for seq, at, page, shared in prepared:
            self.block_table[seq, at] = page
            if shared is None:
                self._end[seq] = at + 1
            else:
                self.pages.give_back(shared)
        super()._apply(batch, prepared)

    shares = True

    def park(self, src: int, dst: int) -> None:
        """Its pages get an owner more."""
        self.reset(dst)
        self._copy(src, dst)
        self._length[dst] = self._length[src]

    def unpark(self, place: int) -> None:
        """Give the pages back."""
        self.reset(place)

    def row(self, seq: int, position: int) -> int:
        """The pool row of a position that is held."""
        return self.block_table.item(seq, position // PAGE) * PAGE + position % PAGE

    def rows(self, seq: int, start: int, n: int) -> np.ndarray:
        """The pool rows of positions start .. start + n - 1, all held, i32 [n]."""
        if start // PAGE == (start + n - 1) // PAGE:
            row = self.row(seq, start)
            return np.arange(row, row + n, dtype=np.int32)
        at = np.arange(start, start + n, dtype=np.int32)
        return self.block_table[seq, at // PAGE] * PAGE + at % PAGE

    def can_commit(self, seq: int, n: int) -> bool:
        """Any prefix of the pending tokens."""
        return 0 <= n <= self._pending[seq]

    def commit_all(self, batch: Sequence[Reservation]) -> None:
        """No page gets free, unless a window leaves it behind."""
        if self.window:
            super().commit_all(batch)
            return
        for seq, n, *_ in batch:
            self._length[seq] += n
            self._pending[seq] = 0

    def _commit(self, seq: int, n: int) -> None:
        """Keep n; pages that held only forgotten positions are free again."""
        forgets = n < self._pending[seq]
        super()._commit(seq, n)
        if forgets or self.window:
            self._release(seq)

    def can_remove(self, seq: int, start: int) -> bool:
        """Any suffix, while nothing is pending and all that position start sees is held."""
        if self._pending[seq] or not 0 <= start <= self._length[seq]:
            return False
        return start == 0 or self._first[seq] * PAGE <= self._seen_from(start)

    def _remove(self, seq: int, start: int) -> None:
        super()._remove(seq, start)
        self._release(seq)

    def lose(self, seq: int) -> None:
        """Pending tokens are forgotten: only their rows were written."""
        self._commit(seq, 0)

    def _reset(self, seq: int) -> None:
        """Who owns which page is counted anew from the block tables of all sequences."""
        self._first[seq] = self._end[seq] = 0
        self.block_table[seq] = 0
        at = np.arange(self.block_table.shape[1])
        first, end = np.array(self._first)[:, None], np.array(self._end)[:, None]
        # One assignment: whoever is interrupted before it has changed nothing of others.
        self.pages = Pages(self.pages.n, self.block_table[(first <= at) & (at < end)])

    def max_rollback(self, seq: int) -> int:
        """Everything pending."""
        return self._pending[seq]

    def _copy(self, src: int, dst: int) -> None:
        for at in self.held(src):
            self.pages.share(self.block_table.item(src, at))
        self.block_table[dst] = self.block_table[src]
        self._first[dst], self._end[dst] = self._first[src], self._end[src]

    def _seen_from(self, position: int) -> int:
        """The first position that a query at this one sees."""
        return max(0, position - self.window + 1) if self.window else 0

    def _kept_page(self, length: int) -> int:
        """The first page that a sequence of this length needs."""
        return self._seen_from(max(0, length - self.slack)) // PAGE

    def _release(self, seq: int) -> None:
        """Give back the pages behind the sequence's end and those before what is needed."""
        end = pages_of(self._length[seq])
        first = min(max(self._first[seq], self._kept_page(self._length[seq])), end)
        # No longer held before it is given back, so that it cannot be given back twice.
        before = self.held(seq)
        self._first[seq], self._end[seq] = first, end
        for at in before:
            if not first <= at < end:
                page = self.block_table.item(seq, at)
                self.block_table[seq, at] = 0
                self.pages.give_back(page)


def pages_of(positions: int) -> int:
    """Pages that so many positions fill."""
    return -(-positions // PAGE)


def page_rows(page: int, n: int) -> slice:
    """The first n pool rows of a page."""
    return slice(page * PAGE, page * PAGE + n)
