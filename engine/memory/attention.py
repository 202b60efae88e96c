"""Attention memory: keys and values in pages, saved, kept and brought back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import numpy as np

from ...backends.base import KeptParts, Parts, aligned
from ...graph.errors import RequestError
from ...models.memories import PAGE
from .paged import PagedRows, page_rows, pages_of


class PagedKV(PagedRows):
    """Pages, and what is read from and written to them besides passes."""

    def save(self, seq: int) -> dict[str, np.ndarray]:
        """By state, the rows of the sequence's last positions, up to its length: of all of them
        or, with a window, of those that are held, from the start of a page on.

        Raises RequestError while tokens are pending."""
        if self._pending[seq]:
            raise RequestError(
                f"sequence {seq}: {self._pending[seq]} tokens are pending; commit before saving"
            )
        first = self._first[seq] * PAGE
        n = self._length[seq] - first
        saved = {name: np.empty(*self._storage(name, n)) for name in self.states}
        for name, array in saved.items():
            for rows, part in self._pieces(seq, first, self._length[seq]):
                array[part] = self.pools.read(name, rows)
        return saved

    def check_restore(self, seq: int, length: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Raise RequestError when the length does not fit, pages are short, an array is missing,
        misshapen or of another type, or does not reach back as far as the window."""
        if not 0 <= length <= self.n_ctx:
            raise RequestError(
                f"sequence {seq}: {length} saved tokens do not fit in a context of {self.n_ctx}; "
                "load with a larger context (n_ctx)"
            )
        n = self._saved_rows(length, arrays)
        for name in self.states:
            shape, dtype = self._storage(name, n)
            got = arrays.get(name)
            if got is None or got.shape != shape or got.dtype != dtype:
                found = "none" if got is None else f"{got.dtype} {list(got.shape)}"
                raise RequestError(f"state {name!r} should be {dtype} {list(shape)}, got {found}")
        start = self._start(length, n)
        if start > self._seen_from(length):
            raise RequestError(
                f"sequence {seq}: the last {length - self._seen_from(length)} of {length} tokens "
                f"should be saved in whole pages, got the last {n}"
            )
        why = self._shortage(pages_of(length) - start // PAGE)
        if why:
            raise RequestError(why)

    @property
    def reach(self) -> int | None:
        """Everything or, with a window, what the slack allows."""
        return self.slack if self.window and self.slack < self.n_ctx else None

    def to_keep(self, seq: int) -> Parts:
        """The rows that the next query sees, page by page, where pages do not stay."""
        if self.reach is None:
            return {}
        first, end = self._seen_page(self._length[seq]) * PAGE, self._length[seq]
        rows = tuple(rows for rows, _ in self._pieces(seq, first, end))
        return dict.fromkeys(self.states, rows)

    def can_rewind(self, seq: int, start: int, kept: KeptParts) -> bool:
        """While the pages are there, or with kept rows and room for them."""
        if self.can_remove(seq, start):
            return True
        if self._pending[seq] or not 0 <= start <= self._length[seq]:
            return False
        if not self._are_rows(start, kept):
            return False
        rows = start - self._seen_page(start) * PAGE
        own = sum(self.pages.owners(self.block_table.item(seq, at)) == 1 for at in self.held(seq))
        return pages_of(rows) <= self.pages.free + own

    def rewind(self, seq: int, start: int, kept: KeptParts) -> None:
        """Forget the tokens; where pages they see are gone, put kept rows into new ones."""
        there = self.can_remove(seq, start)
        self._remove(seq, start if there else 0)
        if there:
            return
        self._put_back(seq, start, kept)
        self._length[seq] = start

    def can_adopt(self, src: int, start: int, kept: KeptParts) -> bool:
        """While the pages that position start sees are there, or with kept rows and room for
        them."""
        if not 0 < start <= self._length[src]:
            return False
        if self._first[src] <= self._seen_page(start):
            return True
        pages = pages_of(start) - self._seen_page(start)
        return self._are_rows(start, kept) and pages <= self.pages.free

    def adopt(self, src: int, dst: int, start: int, kept: KeptParts) -> None:
        """Share the pages, or put kept rows into new ones."""
        if self._first[src] <= self._seen_page(start):
            first = max(self._first[src], self._kept_page(start))
            for at in range(first, pages_of(start)):
                self.pages.share(self.block_table.item(src, at))
                self.block_table[dst, at] = self.block_table[src, at]
                self._first[dst], self._end[dst] = first, at + 1
        else:
            self._put_back(dst, start, kept)
        self._length[dst] = start

    @property
    def page_bytes(self) -> int:
        """Of all states, unless kept rows bring a window back."""
        if self.reach is not None:
            return 0
        return sum(self.pools.specs[name].nbytes for name in self.states) // self.pages.n

    def read_page(self, src: int, at: int, n: int) -> dict[str, np.ndarray]:
        """Its rows, unless kept ones bring a window back."""
        if self.reach is not None:
            return {}
        rows, found = page_rows(self.block_table.item(src, at), n), {}
        shapes = {name: self._storage(name, n) for name in self.states}
        # One piece of memory, large enough that the system gives it in large pages.
        size = sum(prod(shape) * t.itemsize for shape, t in shapes.values())
        raw = aligned(size, filled=True)
        for name, (shape, dtype) in shapes.items():
            size = prod(shape) * dtype.itemsize
            found[name], raw = raw[:size].view(dtype).reshape(shape), raw[size:]
        self.pools.read_all(rows, found)
        return found

    def can_recall(self, start: int, kept: KeptParts) -> bool:
        """With pages for all of it or, with a window, kept rows and room for them."""
        pages = pages_of(start) - self._recalled_from(start)
        able = self.reach is None or self._are_rows(start, kept)
        return able and 0 < start <= self.n_ctx and pages <= self.pages.free

    def recall(
        self, dst: int, start: int, pages: Sequence[Mapping[str, np.ndarray]], kept: KeptParts
    ) -> None:
        """Rows into new pages."""
        if self.reach is not None:
            self._put_back(dst, start, kept)
        else:
            self._take_pages(dst, 0, start)
            for name in self.states:
                for i, (rows, part) in enumerate(self._pieces(dst, 0, start)):
                    self.pools.write(name, rows, pages[i][name][: part.stop - part.start])
        self._length[dst] = start

    def _recalled_from(self, start: int) -> int:
        """The first page that `recall` fills."""
        return 0 if self.reach is None else self._seen_page(start)

    def _are_rows(self, start: int, kept: KeptParts) -> bool:
        """Whether these are the rows that `to_keep` named at `start` tokens."""
        rows = start - self._seen_page(start) * PAGE
        for name in self.states:
            spec, there = self.pools.specs[name], kept.get(name, ())
            if sum(part.nbytes for part in there) != rows * spec.nbytes // spec.shape[0]:
                return False
        return True

    def _put_back(self, seq: int, start: int, kept: KeptParts) -> None:
        """Kept rows into pages of an empty sequence."""
        first = self._seen_page(start)
        self._take_pages(seq, first, start)
        for name in self.states:
            pieces = self._pieces(seq, first * PAGE, start)
            for (rows, _), part in zip(pieces, kept[name], strict=True):
                self.pools.put_back(name, rows, part)

    def _seen_page(self, position: int) -> int:
        """The first page that a query at this position sees."""
        return self._seen_from(position) // PAGE

    def _take_pages(self, seq: int, first: int, length: int) -> None:
        """Let an empty sequence hold pages from the first on for so many tokens."""
        for at in range(first, pages_of(length)):
            self.block_table[seq, at] = self.pages.take()
        self._first[seq], self._end[seq] = first, pages_of(length)

    def _restore(self, seq: int, length: int, arrays: Mapping[str, np.ndarray]) -> None:
        n = self._saved_rows(length, arrays)
        start = self._start(length, n)
        self._take_pages(seq, start // PAGE, length)
        for name in self.states:
            values = arrays[name][start - (length - n) :]
            for rows, part in self._pieces(seq, start, length):
                self.pools.write(name, rows, values[part])

    def _storage(self, name: str, n: int) -> tuple[tuple[int, ...], np.dtype]:
        """Shape and type of n rows of a state."""
        spec = self.pools.specs[name]
        return (n, *spec.storage_shape[1:]), np.dtype(spec.dtype.storage)

    def _saved_rows(self, length: int, arrays: Mapping[str, np.ndarray]) -> int:
        """How many rows each array should have: as many as the first one has, at most length."""
        sizes = [len(arrays[name]) for name in self.states if name in arrays and arrays[name].ndim]
        return min([length, *sizes[:1]])

    def _start(self, length: int, saved: int) -> int:
        """The first position to be held when the last `saved` of `length` ones are at hand."""
        return max(self._kept_page(length), pages_of(length - saved)) * PAGE

    def _pieces(self, seq: int, start: int, stop: int) -> Iterator[tuple[slice, slice]]:
        """Positions start (of a page) to stop, page by page: rows of the pool, and these positions
        less start."""
        for at in range(start, stop, PAGE):
            n = min(PAGE, stop - at)
            page = self.block_table.item(seq, at // PAGE)
            yield page_rows(page, n), slice(at - start, at - start + n)
