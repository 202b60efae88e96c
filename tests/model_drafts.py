"""A target and a model drafter in step, with outcomes that the test decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import riverrun as rr
from riverrun.engine.prompts import Prompt
from riverrun.engine.sequences import Sequences
from riverrun.speculative.chain import ChainDrafter
from riverrun.speculative.drafter import Ask, Draft, Draw

Make = Callable[[Sequences], ChainDrafter]
DRAW = Draw(0.8, 7)


@dataclass
class Duet:
    """Sequences of the target, their drafter, and the committed text of every sequence."""

    target: Sequences
    drafter: ChainDrafter
    text: list[list[int]]

    @classmethod
    def of(cls, model: rr.Model, make: Make, n_seqs: int = 1, n_ctx: int = 512) -> Duet:
        plan = model.plan_session(n_ctx, n_seqs, n_rs_seq=8, rollback="snapshots")
        target = Sequences(model, plan)
        return cls(target, make(target), [[] for _ in range(n_seqs)])

    def prompt(self, tokens: Sequence[int], seq: int = 0, kept: int = 0) -> int:
        """A whole text, of which the target holds the first `kept` tokens; the likeliest next."""
        self.drafter.begin(seq, tokens, kept)
        self.text[seq] = list(tokens[:kept])
        best = -1
        work = Prompt(self.target, seq, tokens[kept:], hidden=True)
        while not work.done:
            part, found = work.step()
            best = int(found.logits[0].argmax())
            self._observe(seq, part, found.hidden)
        return best

    def drafts(
        self, newest: Mapping[int, int], limit: int = 3, draw: Draw | None = None
    ) -> list[Draft]:
        """What is drafted behind the newest token of some sequences."""
        asks = [Ask(seq, [*self.text[seq], t], limit, draw) for seq, t in newest.items()]
        return self.drafter.draft(asks)

    def verify(self, items: Mapping[int, Sequence[int]], keep: Mapping[int, int]) -> list[int]:
        """The target's pass over newest tokens and drafts, of which keep[seq] drafts stay; the
        likeliest token after what stays, of each."""
        found = self.target.verify(list(items.items()), sure=[1] * len(items), hidden=True)
        logits, hidden = found.logits.copy(), found.hidden.copy()
        best, at = [], 0
        for seq, tokens in items.items():
            n = 1 + keep[seq]
            self.target.commit(seq, n)
            best.append(int(logits[at + n - 1].argmax()))
            self._observe(seq, tokens[:n], hidden[at : at + n])
            at += len(tokens)
        return best

    def round(self, newest: int, limit: int, keep: int, seq: int = 0) -> int:
        """Draft, verify, keep the first `keep` drafts; the likeliest next token."""
        tokens = [newest]
        if limit:
            tokens += self.drafts({seq: newest}, limit)[0].tokens
        return self.verify({seq: tokens}, {seq: min(keep, len(tokens) - 1)})[0]

    def clear(self, seq: int = 0) -> None:
        self.target.clear(seq)
        self.drafter.clear(seq)
        self.text[seq] = []

    def _observe(self, seq: int, tokens: Sequence[int], hidden: np.ndarray | None) -> None:
        self.text[seq] += tokens
        rows = hidden if self.drafter.wants_hidden else None
        self.drafter.observe(seq, list(tokens), rows, self.text[seq])


def fresh(model: rr.Model, make: Make, text: Sequence[int], newest: int, limit: int = 3) -> Draft:
    """What a drafter that saw only this text drafts, drawn, so that its distributions show."""
    duet = Duet.of(model, make)
    duet.prompt(text)
    return duet.drafts({0: newest}, limit, DRAW)[0]


def same_as_fresh(model: rr.Model, make: Make, duet: Duet, newest: int, seq: int = 0) -> None:
    """The next draft, its distributions bit for bit, is that of a fresh drafter."""
    want = fresh(model, make, duet.text[seq], newest)
    same(duet.drafts({seq: newest}, 3, DRAW)[0], want)


def same(got: Draft, want: Draft) -> None:
    assert got.tokens == want.tokens
    assert got.distributions is not None and want.distributions is not None
    for (ids, p), (want_ids, want_p) in zip(got.distributions, want.distributions, strict=True):
        np.testing.assert_array_equal(ids, want_ids)
        np.testing.assert_array_equal(p, want_p)
