"""Drafting token by token with a model: what the `draft` and `mtp` drafters share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from ..engine.bound_step import Extra, Items
from ..engine.buckets import MAX_TOKENS, MOST_PROMPT, sequence_buckets
from ..engine.prompts import pass_kind
from ..engine.rows import Pass
from ..engine.sampler.chain import draw as draw_index
from ..engine.sequences import Sequences
from ..graph.errors import Unsupported
from ..graph.random import uniform
from ..models.step import Choice
from .drafter import Ask, Distribution, Draft, Drafter

CANDIDATES = 10  # tokens that share the probability of a draft
DRAFTING = 2  # the stream of random numbers that drafts are drawn from
# Committed tokens that may wait for the next draft's first pass. More are evaluated at once, since
# a draft that had to read a prompt first would be taken for a slow one.
PUT_OFF = 16
# Rows of the passes over more: few, since each is a plan of its own.
PIECES = (MOST_PROMPT, MAX_TOKENS, 128, PUT_OFF)
# Unless no draft was asked for in so many tokens: drafting does not pay there, and reading along
# would cost, too.
UNASKED = 12
# ids int [n, k] of the likeliest tokens of n rows, and their logits f32 [n, k], descending; valid
# until the next pass of a session.
Likeliest: TypeAlias = tuple[np.ndarray, np.ndarray]


@dataclass
class Chain:
    """A draft in progress for one ask."""

    ask: Ask
    tokens: list[int] = field(default_factory=list)
    distributions: list[Distribution] = field(default_factory=list)


class Reader:
    """Brings a drafter's session up to committed tokens, with plans that are there beforehand."""

    def __init__(self, session: Sequences, hidden: bool, n_vocab: int, k: int) -> None:
        """Compiles those and what drafts run, whose first pass takes along what was put off.
        hidden: passes that give likeliest tokens give hidden rows; n_vocab: of how many tokens;
        k: mostly so many."""
        self._session, self._hidden, self._n_vocab, self._k = session, hidden, n_vocab, k
        self._chooses = True  # whether the device finds them
        try:
            session.runner.prepare("last", 1, PUT_OFF, hidden=hidden, choice=self.choice(k))
        except Unsupported:
            self._chooses = False
            session.runner.prepare("last", 1, PUT_OFF, hidden=hidden)
        most = min(session.storage.chunk, session.n_ctx)
        self._sizes = [n for n in PIECES if n <= most] or [most]
        for n in self._sizes:
            session.runner.prepare_step(n, 1, 0, False, pass_kind(n))
        self._rows = {session.runner.rows(n, pass_kind(n)) for n in self._sizes}

    def prepare(self) -> None:
        """Compile drafts' passes for any number of sequences, too."""
        for n in sequence_buckets(self._session.n_seqs):
            most = n * min(PUT_OFF, MAX_TOKENS // n)
            choice = self.choice(self._k)
            self._session.runner.prepare("last", n // 2 + 1, most, n, self._hidden, choice)

    def choice(self, k: int) -> Choice | None:
        """What passes are asked for of which `likeliest` takes k tokens."""
        return Choice(self._n_vocab, k) if self._chooses else None

    def likeliest(self, found: Pass, k: int) -> Likeliest:
        """Of each row that gives something."""
        if found.shortlists is not None:
            return found.shortlists
        return likeliest(found.logits[:, : self._n_vocab], k)

    def piece(self, n: int, most: int) -> int:
        """How many of n tokens the next pass should take, for at most `most` < n to be left."""
        whole = n - n % PUT_OFF
        if not whole:
            return n - most
        fits = whole <= self._sizes[0] and self._held(whole)
        return whole if fits else next(size for size in self._sizes if size <= n)

    def _held(self, n: int) -> bool:
        return self._session.runner.rows(n, pass_kind(n)) in self._rows

    def read(self, seq: int, tokens: Sequence[int], extra: Extra | None = None) -> None:
        """A pass over a piece. extra: as `Passes.evaluate` has it."""
        if len(tokens) < PUT_OFF:
            self.read_together([(seq, tokens)], extra)
        else:
            kind = pass_kind(len(tokens))
            self._session.evaluate([(seq, tokens)], want="none", kind=kind, extra=extra)

    def read_together(self, items: Items, extra: Extra | None = None) -> None:
        """A pass over pieces of several sequences, of PUT_OFF tokens each at most. As in front of a
        draft: plans of so few tokens that give nothing would be more plans."""
        choice = self.choice(self._k)
        self._session.evaluate(items, hidden=self._hidden, extra=extra, choice=choice)


class ChainDrafter(Drafter):
    """Each pass of the model gives a token that the next pass starts from.

    Candidates are the ten likeliest tokens. p_min: the chain ends before a token whose share of
    them is smaller; draft_min: shorter chains are dropped; n_vocab: ids from there on are never
    proposed."""

    def __init__(self, n_vocab: int, draft_min: int, p_min: float) -> None:
        self.n_vocab, self.draft_min, self.p_min = n_vocab, draft_min, p_min
        self._quiet: dict[int, int] = {}  # tokens of a sequence since it was asked for

    @abstractmethod
    def _open(self, asks: Sequence[Ask], k: int) -> Likeliest:
        """Bring the model up to the newest token of each ask; of what follows it the k likeliest
        tokens, for each ask."""

    @abstractmethod
    def _extend(self, chains: Sequence[Chain], rows: Sequence[int], k: int) -> Likeliest:
        """Evaluate the last token of each chain, which was chosen from that row of the pass
        before; the k likeliest tokens of what follows."""

    @abstractmethod
    def _close(self, chains: Sequence[Chain]) -> None:
        """The chains are complete."""

    @abstractmethod
    def _abandon(self, chains: Sequence[Chain]) -> None:
        """A pass failed: put every sequence back to where it was before its chain."""

    def draft(self, asks: Sequence[Ask]) -> list[Draft]:
        """One pass for all asks per token of the longest draft."""
        chains = [Chain(ask) for ask in asks]
        for ask in asks:
            self._quiet[ask.seq] = 0
        # Others would only be dropped for being too short.
        worth = [
            chain
            for chain in chains
            if chain.ask.limit >= self.draft_min and self._knows(chain.ask.seq)
        ]
        if worth:
            try:
                self._grow(worth)
            except BaseException:
                self._abandon(worth)
                raise
        return [self._finish(chain) for chain in chains]

    def _knows(self, seq: int) -> bool:
        """Whether it has what a draft for this sequence starts from."""
        return True

    def _in_use(self, seq: int, n: int) -> bool:
        """Called for n further tokens: whether a draft was asked for shortly before the last of
        them. Parts of prompts are always read."""
        quiet = self._quiet[seq] = self._quiet.get(seq, 0) + (n if n <= PUT_OFF else 0)
        return quiet <= UNASKED

    def _grow(self, chains: list[Chain]) -> None:
        drawn = any(chain.ask.draw is not None for chain in chains)
        k = usual(self.p_min, drawn)
        alive, found = chains, self._open([chain.ask for chain in chains], k)
        while alive:
            first = found[0][:, 0].tolist()
            rows = [
                i
                for i, chain in enumerate(alive)
                if self._choose(chain, first[i], found[0][i], found[1][i])
            ]
            alive = [alive[i] for i in rows]
            more = [i for i, c in enumerate(alive) if len(c.tokens) < c.ask.limit]
            rows, alive = [rows[i] for i in more], [alive[i] for i in more]
            if alive:
                found = self._extend(alive, rows, k)
        self._close(chains)

    def _choose(self, chain: Chain, token: int, ids: np.ndarray, logits: np.ndarray) -> bool:
        """Add a token to the chain, unless none is likely enough. token: the likeliest of ids."""
        draw = chain.ask.draw
        if draw is None:
            if self.p_min > 0 and shares(logits, 1.0)[0] < self.p_min:
                return False
        else:
            p = shares(logits, draw.temperature)
            if p[0] < self.p_min:
                return False
            position = len(chain.ask.context) + len(chain.tokens)
            token = int(ids[draw_index(p, uniform(draw.seed, position, DRAFTING))])
            chain.distributions.append((ids.copy(), p))
        chain.tokens.append(token)
        return True

    def _finish(self, chain: Chain) -> Draft:
        if len(chain.tokens) < self.draft_min:
            return Draft([])
        return Draft(chain.tokens, chain.distributions if chain.ask.draw else None)


def usual(p_min: float, drawn: bool) -> int:
    """Of how many likeliest tokens a draft's are chosen. drawn: whether any may be drawn."""
    return CANDIDATES if p_min > 0 or drawn else 1


def likeliest(logits: np.ndarray, k: int) -> Likeliest:
    """The k likeliest tokens of each row of logits f32 [n, V], and their logits."""
    if k == 1:
        ids = logits.argmax(axis=1)[:, None]
    else:
        k = min(k, logits.shape[1])
        some = np.sort(np.argpartition(logits, -k, axis=1)[:, -k:], axis=1)
        order = np.argsort(-np.take_along_axis(logits, some, 1), axis=1, kind="stable")
        ids = np.take_along_axis(some, order, 1)
    return ids, np.take_along_axis(logits, ids, 1)


def shares(logits: np.ndarray, temperature: float) -> np.ndarray:
    """What likeliest tokens have of their probability at this temperature; logits f32 [k],
    descending."""
    weights = np.exp((logits.astype(np.float64) - float(logits[0])) / temperature)
    found: np.ndarray = weights / weights.sum()
    return found
