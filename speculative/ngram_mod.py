"""Drafts from a table of hashed n-grams and the token behind each."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from ..graph.errors import RequestError
from .drafter import Drafter, Setup, register_drafter
from .ngrams import Text, TextDrafter, at_least

MULTIPLIER = 6364136223846793005  # of Knuth's 64-bit linear congruential generator
EMPTY = -1
BATCH = 32  # tokens that a text runs ahead before they are entered
FULLEST = 0.25  # occupancy above which a shared table is emptied when a sequence begins
PLACES = 64  # of a sequence's own table, for each token of its context: few keys share one
LOW_ACCEPTANCE, LOW_ROUNDS = 0.25, 5


class Pool:
    """The token behind an n-gram, by the n-gram's hash: h = h * MULTIPLIER + token over its
    tokens, modulo the table's size. The last writer wins; keys are not checked.

    The table takes no memory before its first entry."""

    def __init__(self, n: int, size: int) -> None:
        self.n, self.size, self.used = n, size, 0
        self._table: array[int] | None = None
        # Only low bits are kept, so that 64-bit arithmetic may as well wrap at the table's size.
        self._powers = np.array([pow(MULTIPLIER, k, size) for k in range(n)], np.uint64)
        self._leaving = pow(MULTIPLIER, n, size)

    @property
    def nbytes(self) -> int:
        """Memory that the table takes."""
        return 0 if self._table is None else self._table.itemsize * self.size

    def empty(self) -> None:
        """Forget all n-grams."""
        if self._table is not None:
            np.frombuffer(self._table, np.int32).fill(EMPTY)
        self.used = 0

    def add(self, tokens: array[int], start: int) -> None:
        """Enter the tokens from `start` on, each under the n tokens before it."""
        start = max(start, self.n)
        if start >= len(tokens):
            return
        if self._table is None:
            self._table = array("i", [EMPTY]) * self.size
        view = np.frombuffer(self._table, np.int32)
        text = np.array(tokens[start - self.n :], np.int32)
        hashes = np.convolve(text[:-1].astype(np.uint64), self._powers, "valid")
        places = (hashes & np.uint64(self.size - 1)).astype(np.int64)
        self.used += len(np.unique(places[view[places] == EMPTY]))
        view[places] = text[self.n :]

    def chain(self, tokens: list[int], most: int) -> list[int]:
        """Up to `most` tokens that the table puts behind these n, following itself."""
        table, mask, leaving = self._table, self.size - 1, self._leaving
        if table is None:
            return []
        factor = MULTIPLIER & mask
        place = 0
        for token in tokens:
            place = (place * factor + token) & mask
        for i in range(most):
            token = table[place]
            if token == EMPTY:
                break
            tokens.append(token)
            place = (place * factor + token - tokens[i] * leaving) & mask
        return tokens[self.n :]


class PooledText(Text):
    """A text of which the first `entered` tokens have gone into the pool. own: the pool is that of
    this text alone."""

    def __init__(self, pool: Pool, own: bool) -> None:
        super().__init__()
        self.pool, self.own, self.entered, self.low_rounds = pool, own, 0, 0

    def cut(self, kept: int) -> None:
        """An own pool starts over; in a shared one, which keeps no names, nothing is taken back."""
        if self.own:
            self.pool.empty()
            kept = 0
        self.entered = min(self.entered, kept)

    def grow(self) -> None:
        """Enter new tokens, a batch at a time; all of them into an own pool that was emptied."""
        if len(self.tokens) - self.entered >= BATCH or (self.own and self.entered == 0):
            self.enter()

    def enter(self) -> None:
        """Enter all that is not in the pool yet."""
        self.pool.add(self.tokens, self.entered)
        self.entered = len(self.tokens)


@register_drafter
class NgramMod(TextDrafter[PooledText]):
    """Each sequence has a pool of its own, made at its first entry and emptied when a text begins.

    With share=True one pool serves all sequences and outlives them. It is emptied when a sequence
    begins and more than a quarter of it is taken, and when five drafts of one sequence in a row had
    less than a quarter accepted; the texts of sequences that live then go back in at their next
    round.

    n: tokens of a key, the newest included; n_max: most tokens of a draft; n_min: a draft that
    the pool cannot carry on for so long is dropped; pool_size: entries, a power of two, of 4
    bytes each. draft_max lowers n_max and n_min. Raises RequestError for values out of range."""

    name, priority, default_max = "ngram-mod", 40, 64

    def __init__(
        self,
        *,
        n: int = 24,
        n_max: int = 64,
        n_min: int = 48,
        pool_size: int = 1 << 22,
        share: bool = False,
        draft_max: int | None = None,
        draft_min: int = 0,
    ) -> None:
        super().__init__(draft_max=draft_max, draft_min=draft_min)
        self.n = at_least("n", n, 1)
        if at_least("n_min", n_min, 0) > at_least("n_max", n_max, 1):
            raise RequestError(f"n_min should be at most n_max, {n_max}, got {n_min}")
        if at_least("pool_size", pool_size, 1) & (pool_size - 1):
            raise RequestError(f"pool_size should be a power of two, got {pool_size}")
        self.n_max, self.n_min = self._lowered(n_max), self._lowered(n_min)
        self.pool_size = pool_size
        self._shared = Pool(n, pool_size) if share else None

    @classmethod
    def open(cls, setup: Setup) -> Drafter:
        """A drafter with the bounds that the session sets, own pools as its context needs them."""
        drafter = cls(
            share=setup.share_ngrams, draft_max=setup.draft_max, draft_min=setup.draft_min
        )
        if not setup.share_ngrams:
            needed = 1 << (PLACES * setup.target.n_ctx - 1).bit_length()
            drafter.pool_size = min(drafter.pool_size, needed)
        return drafter

    def _new_text(self) -> PooledText:
        if self._shared is None:
            return PooledText(Pool(self.n, self.pool_size), own=True)
        return PooledText(self._shared, own=False)

    def begin(self, seq: int, prompt: Sequence[int], kept: int = 0) -> None:
        """A sequence's text is now this prompt, which goes into the pool at once."""
        self.clear(seq)
        shared = self._shared
        if shared is not None and shared.used > FULLEST * shared.size:
            self._empty_shared(shared)
        self._follow(seq, prompt, len(prompt)).enter()

    def observe(
        self, seq: int, tokens: Sequence[int], hidden: np.ndarray | None, context: Sequence[int]
    ) -> None:
        """Take the committed tokens in, unless they are a part of the prompt, which is: entered
        again they would overwrite what came later in it."""
        text, n = self._texts.get(seq), len(context)
        if text is None or n >= len(text.tokens) or not text.begins_like(context, n):
            super().observe(seq, tokens, hidden, context)

    def _guess(self, text: PooledText, newest: int, limit: int) -> list[int]:
        if len(text.tokens) < self.n - 1:
            return []
        last = text.tokens[len(text.tokens) - (self.n - 1) :].tolist()
        # n_min is asked of the pool, not of the limit: near a text's end short drafts are fine.
        guess = text.pool.chain([*last, newest], max(self.n_min, min(self.n_max, limit)))
        return guess if len(guess) >= self.n_min else []

    def accept(self, seq: int, n_drafted: int, n_accepted: int) -> None:
        """Empty a shared pool after several poor drafts of the sequence in a row. An own one holds
        the text that would go back in, and nothing else."""
        text, shared = self._texts.get(seq), self._shared
        if text is None or shared is None or n_drafted == 0:
            return
        poor = n_accepted < LOW_ACCEPTANCE * n_drafted
        text.low_rounds = text.low_rounds + 1 if poor else 0
        if text.low_rounds == LOW_ROUNDS:
            self._empty_shared(shared)

    def _empty_shared(self, shared: Pool) -> None:
        shared.empty()
        for text in self._texts.values():
            text.entered = text.low_rounds = 0

    def forget(self) -> None:
        """Forget every sequence and empty a shared pool."""
        super().forget()
        if self._shared is not None:
            self._shared.empty()
