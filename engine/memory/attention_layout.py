"""How much attention memory a session has."""

from __future__ import annotations

from dataclasses import replace

from ...backends import Pools
from ...models.memories import PAGE, AttentionSpec, Capacity
from .attention import PagedKV
from .layout import Demand, Layout, MemoryBytes, lays_out
from .paged import pages_of
from .pages import MOST_PARKED, window_pages


class AttentionLayout(Layout):
    """Pages for the whole context of every sequence or, of layers with a window, for as much as
    they hold at a time; fewer where the session's sequences share fewer."""

    spec: AttentionSpec

    def size(self, c: Capacity) -> Capacity:
        """Pages of all sequences."""
        d, texts = self.demand, self.demand.n_seqs
        if d.n_pages is not None:
            # Pages for more than all sequences hold texts that have left theirs.
            texts = max(texts, -(-d.n_pages // pages_of(d.n_ctx)))
        pages = self._pages() * texts
        if d.n_pages is not None:
            # Layers with a window never hold more pages of a text than the others do.
            pages = min(pages, d.n_pages)
        if self.spec.window:
            return replace(c, window_pages=pages)
        return replace(c, n_pages=pages)

    def nbytes(self, c: Capacity) -> MemoryBytes:
        """All pages; along prompts, the rows that a window sees."""
        states, kept = self.spec.states(c).values(), 0
        if self._slack() < self.demand.n_ctx:
            rows = window_pages(self.spec.window, 0, 1, self.demand.n_ctx) * PAGE
            kept = sum(rows * spec.nbytes // spec.shape[0] for spec in states)
        return MemoryBytes(attention=sum(spec.nbytes for spec in states), kept=kept)

    def make(self, pools: Pools, c: Capacity) -> PagedKV:
        """Empty pages."""
        n_pages = c.window_pages if self.spec.window else c.n_pages
        return PagedKV(
            self.demand.n_seqs,
            n_pages,
            self.demand.n_ctx,
            pools,
            self.spec.states(c),
            self.spec.window,
            self._slack(),
            self.spec.suffix,
            MOST_PARKED,
            self.demand.most,
        )

    def _pages(self) -> int:
        return window_pages(self.spec.window, self._slack(), self.demand.most, self.demand.n_ctx)

    def _slack(self) -> int:
        """Committed tokens that a sequence can always go back by: all of them where their pages
        would be as many as those of the whole context anyway."""
        d, window = self.demand, self.spec.window
        least = max(PAGE, d.n_rs_seq + 1)
        whole = window_pages(window, least, d.most, d.n_ctx) == window_pages(0, 0, 0, d.n_ctx)
        return d.n_ctx if whole else least


@lays_out(AttentionSpec)
def attention_layouts(spec: AttentionSpec, demand: Demand) -> list[Layout]:
    """Pages."""
    return [AttentionLayout(spec, demand)]
