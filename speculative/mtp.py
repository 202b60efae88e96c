"""The target's own multi-token-prediction block as drafter.

The block sees pairs: a token and the target's hidden row of the token before it. It has attention
memory of its own, on the target's positions. Source: Gloeckle et al. 2024; DeepSeek-V3, 2024."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..engine import Pass
from ..engine.buckets import MAX_TOKENS
from ..engine.sequences import Sequences
from ..graph.errors import RequestError
from ..models.step import DRAFT_HEAD
from .chain import PUT_OFF, Chain, ChainDrafter, Likeliest, Reader, usual
from .drafter import Ask, Drafter, Setup, register_drafter

HIDDEN = "hidden_in"
# Hidden rows kept for prompts that go back: of the last tokens, and of chunks' ends in prompts.
RECENT, MARKS = 64, 256
# Tokens of a sequence that wait for a pass with those of others; a pass of its own is worth it for
# more.
TOGETHER = 128


class Backlog:
    """Committed tokens of a sequence that the block has not seen, and the text's newest hidden
    rows. A token goes with the row of the one before it, so there is always one row more than
    tokens that wait; in front of a text it is zero. blind: the newest row is not known, since
    nobody kept it, and nothing waits."""

    def __init__(self, width: int) -> None:
        self.tokens: list[int] = []
        self.blind = False
        self.prompt = 0  # tokens of the prompt
        self._width, self._end = width, 0
        # Arrays [n, width] in the text's order; a whole pass of a prompt is one of them.
        self._rows, self._held = [np.zeros((1, width), np.float32)], 1
        self._marks: dict[int, np.ndarray] = {}

    def add(self, tokens: Sequence[int], hidden: np.ndarray, end: int) -> None:
        """Committed tokens with their own hidden rows, f32 [len(tokens), width], which may change
        after the next `keep`; end: the position after them. Behind a gap the first one is left
        out, as the row that it goes with is not known."""
        self._rows.append(hidden)
        self.tokens.extend(tokens[self.blind :])
        self.blind, self._end = False, end
        if end < self.prompt:
            if len(self._marks) >= MARKS:
                del self._marks[next(iter(self._marks))]
            self._marks[end] = hidden[-1:].copy()

    def skip(self, end: int) -> None:
        """Tokens were committed whose rows nobody kept, up to this position: the block does without
        them and those that wait."""
        self.tokens, self.blind = [], True
        self._rows, self._held, self._end = [], 0, end

    def rows(self, n: int) -> list[np.ndarray]:
        """What goes with the first n tokens that wait; with the next one of the text behind them,
        too, for n = len(tokens) + 1. Arrays [k, width], one after the other."""
        return _first(_last(self._rows, len(self.tokens) + 1), n)

    def keep(self) -> None:
        """Copy what is needed further of the rows added last, and let go of old ones."""
        most = max(RECENT, len(self.tokens) + 1)
        self._rows[-1] = self._rows[-1][-most:].copy()
        self._held += len(self._rows[-1])
        if self._held > 2 * most:
            self._rows, self._held = _last(self._rows, most), most

    def go_back(self, end: int) -> None:
        """Only the first `end` tokens stay, and the block has seen those. Where the row of the
        last one is not kept, zero takes its place, as in front of a text."""
        recent, zero = _last(self._rows, RECENT), np.zeros((1, self._width), np.float32)
        self._marks = {at: row for at, row in self._marks.items() if at <= end}
        known = _first(recent, _count(recent) - max(0, self._end - end))
        self._rows = known or [self._marks.get(end, zero)]
        self.tokens, self._held, self._end, self.blind = [], _count(self._rows), end, False


def _count(pieces: Sequence[np.ndarray]) -> int:
    return sum(map(len, pieces))


def _first(pieces: Sequence[np.ndarray], n: int) -> list[np.ndarray]:
    """The first n rows of arrays that follow one another: views."""
    found = []
    for piece in pieces:
        if n <= 0:
            break
        found.append(piece[:n])
        n -= len(piece)
    return found


def _last(pieces: Sequence[np.ndarray], n: int) -> list[np.ndarray]:
    """The last n rows, or all where there are fewer."""
    found = []
    for piece in reversed(pieces):
        if n <= 0:
            break
        found.append(piece[-n:])
        n -= len(piece)
    return found[::-1]


@register_drafter
class Mtp(ChainDrafter):
    """Drafts with the block after the trunk, chained on its own hidden rows.

    After `observe` the block's memory and its backlog together hold every committed token whose
    hidden row was given; the pairs of a draft are forgotten when it is complete."""

    name, priority, default_max, wants_hidden = "mtp", 110, 3, True

    def __init__(
        self,
        target: Sequences,
        draft_min: int = 0,
        p_min: float = 0.0,
        draft_head: bool = False,
        draws: bool = False,
    ) -> None:
        """draws: drafts may be asked for that are drawn."""
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
        self._reader = Reader(self.session, True, self.n_vocab, usual(p_min, draws))
        self._width = model.source.arch.hp.n_embd
        self._backlog = [Backlog(self._width) for _ in range(target.n_seqs)]
        self._last: np.ndarray = np.empty((0, self._width), np.float32)

    @classmethod
    def open(cls, setup: Setup) -> Drafter:
        """Raises ModelError for a model without such a block, RequestError for one loaded without
        the draft head that is asked for."""
        return cls(setup.target, setup.draft_min, setup.p_min, setup.draft_head, setup.draws)

    def prepare(self) -> None:
        """Compile passes of all sizes."""
        self._reader.prepare()

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
        """Put pairs off until the next draft: a few go along in its first pass, and more, such as
        the ends of prompts, are read together with those of other sequences.
        Tokens without hidden rows are left out; the block goes on behind them."""
        backlog = self._backlog[seq]
        if hidden is None:
            backlog.skip(len(context))
            return
        most = TOGETHER if self._in_use(seq, len(tokens)) else MAX_TOKENS
        try:
            backlog.add(tokens, hidden, len(context))
            if len(backlog.tokens) > most:
                self._catch_up(seq, PUT_OFF)
        finally:
            backlog.keep()

    def clear(self, seq: int) -> None:
        """Forget the block's memory of a sequence."""
        if self.session.holds(seq) or self.session.memory.pending(seq):
            self.session.clear(seq)
        self._backlog[seq] = Backlog(self._width)

    def _knows(self, seq: int) -> bool:
        return not self._backlog[seq].blind

    def _open(self, asks: Sequence[Ask], k: int) -> Likeliest:
        room = min(PUT_OFF, MAX_TOKENS // len(asks))
        self._catch_up_all([ask.seq for ask in asks], room - 1)
        backlogs = [self._backlog[ask.seq] for ask in asks]
        items = [(a.seq, [*b.tokens, a.context[-1]]) for a, b in zip(asks, backlogs, strict=True)]
        rows = [piece for b in backlogs for piece in b.rows(len(b.tokens) + 1)]
        extra, choice = {HIDDEN: rows}, self._reader.choice(k)
        found = self.session.verify(items, want="last", hidden=True, extra=extra, choice=choice)
        ends = np.cumsum([len(tokens) for _, tokens in items]) - 1
        self._keep_last(found, ends)
        return self._reader.likeliest(found, k)

    def _extend(self, chains: Sequence[Chain], rows: Sequence[int], k: int) -> Likeliest:
        items = [(c.ask.seq, c.tokens[-1:]) for c in chains]
        extra, choice = {HIDDEN: [self._last[list(rows)]]}, self._reader.choice(k)
        found = self.session.verify(items, hidden=True, extra=extra, choice=choice)
        self._keep_last(found, np.arange(len(items)))
        return self._reader.likeliest(found, k)

    def _close(self, chains: Sequence[Chain]) -> None:
        for seq in (c.ask.seq for c in chains):
            backlog = self._backlog[seq]
            self.session.commit(seq, len(backlog.tokens))
            backlog.tokens = []

    def _abandon(self, chains: Sequence[Chain]) -> None:
        """The backlog stays for the next draft."""
        for chain in chains:
            self.session.commit(chain.ask.seq, 0)

    def _keep_last(self, found: Pass, ends: np.ndarray) -> None:
        assert found.hidden is not None
        self._last = found.hidden[ends].copy()

    def _catch_up_all(self, seqs: Sequence[int], most: int) -> None:
        """Evaluate the backlogs but for at most `most` pairs of each, those of several in passes
        that they share."""
        behind = [seq for seq in seqs if len(self._backlog[seq].tokens) > most]
        for seq in behind:
            self._catch_up(seq, TOGETHER if len(behind) > 1 else most)
        while behind := [seq for seq in behind if len(self._backlog[seq].tokens) > most]:
            share = min(PUT_OFF, MAX_TOKENS // len(behind))
            items, rows = [], []
            for backlog in (self._backlog[seq] for seq in behind):
                n = min(share, len(backlog.tokens) - most)
                items.append(backlog.tokens[:n])
                rows += backlog.rows(n)
            self._reader.read_together(list(zip(behind, items, strict=True)), {HIDDEN: rows})
            for seq, tokens in zip(behind, items, strict=True):
                del self._backlog[seq].tokens[: len(tokens)]

    def _catch_up(self, seq: int, most: int) -> None:
        """Evaluate the backlog but for at most `most` pairs."""
        backlog = self._backlog[seq]
        while len(backlog.tokens) > most:
            n = self._reader.piece(len(backlog.tokens), most)
            self._reader.read(seq, backlog.tokens[:n], {HIDDEN: backlog.rows(n)})
            del backlog.tokens[:n]
