"""The target's own multi-token-prediction block as drafter.

The block sees pairs: a token and the target's hidden row of the token before it. It has attention
memory of its own, on the target's positions. Source: Gloeckle et al. 2024; DeepSeek-V3, 2024."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from ..engine import Pass
from ..engine.buckets import MAX_TOKENS
from ..engine.prompts import pass_kind
from ..engine.sequences import Sequences
from ..graph.errors import RequestError
from ..models.step import DRAFT_HEAD
from .chain import PUT_OFF, Chain, ChainDrafter, piece, prepare, prepare_all
from .drafter import Ask, Drafter, Setup, register_drafter

HIDDEN = "hidden_in"
# Hidden rows kept for prompts that go back: of the last tokens, and of chunks' ends in prompts.
RECENT, MARKS = 64, 256


class Backlog:
    """Committed pairs of a sequence that the block has not seen, and the row of its last token."""

    def __init__(self, width: int) -> None:
        self.tokens: list[int] = []
        self.rows: list[np.ndarray] = []
        self.last = np.zeros(width, np.float32)
        self.prompt = 0  # tokens of the prompt
        self._end = 0
        self._recent: deque[np.ndarray] = deque(maxlen=RECENT)
        self._marks: dict[int, np.ndarray] = {}

    def add(self, tokens: Sequence[int], hidden: np.ndarray, end: int) -> None:
        """Committed tokens with their own hidden rows; end: the position after them."""
        rows = hidden.copy()
        self.tokens.extend(tokens)
        self.rows.extend((self.last, *rows[:-1]))
        self._recent.extend(rows[-RECENT:].copy())
        self.last, self._end = self._recent[-1], end
        if end < self.prompt:
            if len(self._marks) >= MARKS:
                del self._marks[next(iter(self._marks))]
            self._marks[end] = self.last.copy()

    def go_back(self, end: int) -> None:
        """Only the first `end` tokens stay, and the block has seen those. Where the row of the
        last one is not kept, zero takes its place, as in front of a text."""
        self.tokens, self.rows = [], []
        gone = min(max(0, self._end - end), len(self._recent))
        for _ in range(gone):
            self._recent.pop()
        self._marks = {at: row for at, row in self._marks.items() if at <= end}
        known = self._recent[-1] if self._recent else np.zeros_like(self.last)
        self.last, self._end = self._marks.get(end, known), end


@register_drafter
class Mtp(ChainDrafter):
    """Drafts with the block after the trunk, chained on its own hidden rows.

    After `observe` the block's memory and its backlog together hold every committed token; the
    pairs of a draft are forgotten when it is complete."""

    name, priority, default_max, wants_hidden = "mtp", 110, 3, True

    def __init__(
        self, target: Sequences, draft_min: int = 0, p_min: float = 0.0, draft_head: bool = False
    ) -> None:
        model = target.model
        if draft_head and DRAFT_HEAD not in model.source.weights:
            raise RequestError(
                f"{model.name} was loaded without a draft head; load it with draft_head=N, the "
                "number of tokens to choose drafts among"
            )
        super().__init__(model.tokenizer.n_vocab or model.n_vocab, draft_min, p_min)
        options = target.plan.options
        plan = model.plan_session(
            target.n_ctx,
            target.n_seqs,
            cache_type_k=options.cache_type_k,
            cache_type_v=options.cache_type_v,
            program="mtp",
            draft_head=draft_head,
        )
        self.session = Sequences(model, plan)
        prepare(self.session, hidden=True)
        self._width = model.source.arch.hp.n_embd
        self._backlog = [Backlog(self._width) for _ in range(target.n_seqs)]
        self._last: np.ndarray = np.empty((0, self._width), np.float32)

    @classmethod
    def open(cls, setup: Setup) -> Drafter:
        """Raises ModelError for a model without such a block, RequestError for one loaded without
        the draft head that is asked for."""
        return cls(setup.target, setup.draft_min, setup.p_min, setup.draft_head)

    def prepare(self) -> None:
        """Compile passes of all sizes."""
        prepare_all(self.session, hidden=True)

    def begin(self, seq: int, prompt: Sequence[int], kept: int = 0) -> None:
        """Keep what the block knows of the first `kept` tokens."""
        self._quiet[seq] = 0
        if kept > self.session.length(seq):
            self._catch_up(seq, 0)
        if kept and self.session.tokens(seq)[:kept] == list(prompt[:kept]):
            self.session.remove(seq, kept)
            self._backlog[seq].go_back(kept)
        else:
            self.clear(seq)
        self._backlog[seq].prompt = len(prompt)

    def observe(
        self, seq: int, tokens: Sequence[int], hidden: np.ndarray | None, context: Sequence[int]
    ) -> None:
        """Put a few pairs off until the next draft, which takes them along in its first pass."""
        assert hidden is not None
        self._backlog[seq].add(tokens, hidden, len(context))
        most = PUT_OFF if self._in_use(seq, len(tokens)) else MAX_TOKENS
        if len(self._backlog[seq].tokens) > most:
            self._catch_up(seq, PUT_OFF)

    def clear(self, seq: int) -> None:
        """Forget the block's memory of a sequence."""
        self.session.clear(seq)
        self._backlog[seq] = Backlog(self._width)

    def _open(self, asks: Sequence[Ask]) -> np.ndarray:
        room = min(PUT_OFF, MAX_TOKENS // len(asks))
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

    def _abandon(self, chains: Sequence[Chain]) -> None:
        """The backlog stays for the next draft."""
        for chain in chains:
            self.session.commit(chain.ask.seq, 0)

    def _keep_last(self, found: Pass, ends: np.ndarray) -> None:
        assert found.hidden is not None
        self._last = found.hidden[ends].copy()

    def _catch_up(self, seq: int, most: int) -> None:
        """Evaluate the backlog but for at most `most` pairs."""
        backlog = self._backlog[seq]
        while len(backlog.tokens) > most:
            n = piece(len(backlog.tokens), most)
            extra = {HIDDEN: np.stack(backlog.rows[:n])}
            self.session.evaluate(
                [(seq, backlog.tokens[:n])],
                want="none",
                hidden=True,
                kind=pass_kind(n),
                extra=extra,
            )
            del backlog.tokens[:n], backlog.rows[:n]
