"""The target's own multi-token-prediction block as drafter.

The block sees pairs: a token and the target's hidden row of the token before it. It has attention
memory of its own, on the target's positions. Source: Gloeckle et al. 2024; DeepSeek-V3, 2024."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..engine.buckets import MAX_TOKENS
from ..engine.session import Pass, Session
from .chain import Chain, ChainDrafter
from .drafter import Ask, Drafter, Setup, register_drafter

HIDDEN = "hidden_in"
MARKS = 64  # prompt positions whose hidden rows are kept, for prompts that go back there


class Backlog:
    """Committed pairs of a sequence that the block has not seen, and the row of its last token."""

    def __init__(self, width: int) -> None:
        self.tokens: list[int] = []
        self.rows: list[np.ndarray] = []
        self.last = np.zeros(width, np.float32)
        self.marks: dict[int, np.ndarray] = {}

    def add(self, tokens: Sequence[int], hidden: np.ndarray, end: int) -> None:
        """Committed tokens with their own hidden rows; end: the position after them."""
        self.tokens.extend(tokens)
        self.rows.extend((self.last, *hidden[:-1].copy()))
        self.last = hidden[-1].copy()
        if len(tokens) > 1 and len(self.marks) < MARKS:
            self.marks[end] = self.last


@register_drafter
class Mtp(ChainDrafter):
    """Drafts with the block after the trunk, chained on its own hidden rows.

    After `observe` the block's memory and its backlog together hold every committed token; the
    pairs of a draft are forgotten when it is complete."""

    name, priority, default_max, wants_hidden = "mtp", 110, 3, True

    def __init__(
        self, target: Session, draft_min: int = 0, p_min: float = 0.0, draft_head: bool = False
    ) -> None:
        model = target.model
        super().__init__(model.tokenizer.n_vocab or model.n_vocab, draft_min, p_min)
        options = target.plan.options
        self.session = model.session(
            target.n_ctx,
            target.n_seqs,
            cache_type_k=options.cache_type_k,
            cache_type_v=options.cache_type_v,
            program="mtp",
            draft_head=draft_head,
        )
        self._width = model.source.arch.hp.n_embd
        self._backlog = [Backlog(self._width) for _ in range(target.n_seqs)]
        self._last: np.ndarray = np.empty((0, self._width), np.float32)

    @classmethod
    def open(cls, setup: Setup) -> Drafter:
        """Raises ModelError for a model without such a block."""
        return cls(setup.target, setup.draft_min, setup.p_min, setup.draft_head)

    def begin(self, seq: int, prompt: Sequence[int], kept: int = 0) -> None:
        """Keep what the block knows of the first `kept` tokens."""
        old = self._backlog[seq]
        self._catch_up(seq, 0)
        if self.session.tokens(seq)[:kept] != list(prompt[:kept]) or not kept:
            self.clear(seq)
            return
        self.session.remove(seq, kept)
        fresh = self._backlog[seq] = Backlog(self._width)
        fresh.marks = {at: row for at, row in old.marks.items() if at <= kept}
        fresh.last = fresh.marks.get(kept, fresh.last)

    def observe(
        self, seq: int, tokens: Sequence[int], hidden: np.ndarray | None, context: Sequence[int]
    ) -> None:
        """Put the pairs off until the next draft, which takes them along in its first pass."""
        assert hidden is not None
        self._backlog[seq].add(tokens, hidden, len(context))
        if len(self._backlog[seq].tokens) >= MAX_TOKENS:
            self._catch_up(seq, 0)

    def clear(self, seq: int) -> None:
        """Forget the block's memory of a sequence."""
        self.session.clear(seq)
        self._backlog[seq] = Backlog(self._width)

    def _open(self, asks: Sequence[Ask]) -> np.ndarray:
        room = MAX_TOKENS // len(asks)
        for ask in asks:
            self._catch_up(ask.seq, room - 1)
        backlogs = [self._backlog[ask.seq] for ask in asks]
        items = [(a.seq, [*b.tokens, a.context[-1]]) for a, b in zip(asks, backlogs, strict=True)]
        rows = [row for b in backlogs for row in (*b.rows, b.last)]
        found = self.session.verify(items, want="last", hidden=True, extra={HIDDEN: np.stack(rows)})
        ends = np.cumsum([len(tokens) for _, tokens in items]) - 1
        self._keep_last(found, ends)
        return found.logits

    def _extend(self, chains: Sequence[Chain], rows: Sequence[int]) -> np.ndarray:
        items = [(c.ask.seq, c.tokens[-1:]) for c in chains]
        found = self.session.verify(items, hidden=True, extra={HIDDEN: self._last[list(rows)]})
        self._keep_last(found, np.arange(len(items)))
        return found.logits

    def _close(self, chains: Sequence[Chain]) -> None:
        for seq in (c.ask.seq for c in chains):
            backlog = self._backlog[seq]
            self.session.commit(seq, len(backlog.tokens))
            backlog.tokens, backlog.rows = [], []

    def _keep_last(self, found: Pass, ends: np.ndarray) -> None:
        assert found.hidden is not None
        self._last = found.hidden[ends].copy()

    def _catch_up(self, seq: int, most: int) -> None:
        """Evaluate the backlog but for at most `most` pairs."""
        backlog = self._backlog[seq]
        while len(backlog.tokens) > most:
            n = min(len(backlog.tokens), MAX_TOKENS)
            extra = {HIDDEN: np.stack(backlog.rows[:n])}
            self.session.evaluate(
                [(seq, backlog.tokens[:n])], want="none", hidden=True, extra=extra
            )
            del backlog.tokens[:n], backlog.rows[:n]
