"""A second, smaller model as drafter. Source: Leviathan, Kalman & Matias 2023."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..engine import Model
from ..engine.buckets import MAX_TOKENS
from ..engine.prompts import WORTH_KEEPING
from ..engine.sequences import Sequences
from ..graph.errors import RequestError
from .chain import PUT_OFF, Chain, ChainDrafter, Likeliest, Reader, usual
from .drafter import Ask, Drafter, Setup, register_drafter

MOST_PADDING = 128  # ids by which the two vocabularies may differ in size
FIRST_COMPARED = 5  # ids before this one are special tokens that families number differently


@register_drafter
class DraftModel(ChainDrafter):
    """Drafts with a model of the same vocabulary in a session of its own.

    That session holds the start of the committed text, and nothing else but the newest token of
    a draft, and, pending until `observe` says how many of them stayed, its chained tokens."""

    name, priority, default_max = "draft", 100, 3

    def __init__(
        self,
        target: Sequences,
        model: Model,
        draft_max: int = 3,
        draft_min: int = 0,
        p_min: float = 0.0,
        draws: bool = False,
    ) -> None:
        """draws: drafts may be asked for that are drawn."""
        check_vocabulary(target.model, model)
        n_vocab = target.model.tokenizer.n_vocab or target.model.n_vocab
        super().__init__(n_vocab, draft_min, p_min)
        model.backend.share_threads(target.model.backend)
        plan = model.plan_session(target.n_ctx, target.n_seqs, n_rs_seq=draft_max)
        self.session = Sequences(model, plan)
        self._reader = Reader(self.session, False, n_vocab, usual(p_min, draws))
        self._newest: list[int | None] = [None] * target.n_seqs  # evaluated but not observed
        self._pending: list[list[int]] = [[] for _ in range(target.n_seqs)]

    @classmethod
    def open(cls, setup: Setup) -> Drafter:
        """Raises RequestError without a draft model, or for one of another vocabulary."""
        if setup.draft_model is None:
            raise RequestError("drafter 'draft' needs a second model; give one (draft_model)")
        longest = setup.draft_max or cls.default_max
        given = setup.draft_min, setup.p_min, setup.draws
        return cls(setup.target, setup.draft_model, longest, *given)

    def prepare(self) -> None:
        """Compile passes of all sizes."""
        self._reader.prepare()

    def begin(self, seq: int, prompt: Sequence[int], kept: int = 0) -> None:
        """Keep what the session shares with the prompt."""
        self._forget_pending(seq)
        self._newest[seq], self._quiet[seq] = None, 0
        self.session.reuse(self._readable(prompt), seq)

    def observe(
        self, seq: int, tokens: Sequence[int], hidden: np.ndarray | None, context: Sequence[int]
    ) -> None:
        """Chained tokens that the target has taken stay."""
        newest, self._newest[seq] = self._newest[seq], None
        if newest not in (None, tokens[0]):
            self._forget_pending(seq)
            self.session.reuse(self._readable(context), seq)
        kept = 0
        for mine, theirs in zip(self._pending[seq], tokens[1:], strict=False):
            if mine != theirs:
                break
            kept += 1
        self._forget_pending(seq, kept)
        if self._in_use(seq, len(tokens)) and len(context) - self.session.length(seq) > PUT_OFF:
            self._read(seq, self._behind(seq, context), PUT_OFF)

    def clear(self, seq: int) -> None:
        """Forget a sequence."""
        self._pending[seq], self._newest[seq] = [], None
        self.session.clear(seq)

    def _forget_pending(self, seq: int, kept: int = 0) -> None:
        if self._pending[seq]:
            self.session.commit(seq, kept)
            self._pending[seq] = []

    def _open(self, asks: Sequence[Ask], k: int) -> Likeliest:
        for ask in asks:
            self._take_back(ask)
        behind = [self._behind(ask.seq, ask.context) for ask in asks]
        most = min(PUT_OFF, MAX_TOKENS // len(asks))
        for ask, tokens in zip(asks, behind, strict=True):
            self._read(ask.seq, tokens, most)
        items = [(ask.seq, tokens) for ask, tokens in zip(asks, behind, strict=True)]
        found = self.session.evaluate(items, choice=self._reader.choice(k))
        for ask in asks:
            self._newest[ask.seq] = ask.context[-1]
        return self._reader.likeliest(found, k)

    def _read(self, seq: int, tokens: list[int], most: int) -> None:
        """Evaluate the first of these tokens, and take them away, until at most `most` are left.
        What is left behind a prompt can be come back to, as by `prefill`."""
        prompt = len(tokens) >= WORTH_KEEPING
        while len(tokens) > most:
            n = self._reader.piece(len(tokens), most)
            self._reader.read(seq, tokens[:n])
            del tokens[:n]
        if prompt:
            self.session.storage.remember(seq)

    def _take_back(self, ask: Ask) -> None:
        """Undo a draft that was never judged."""
        self._forget_pending(ask.seq)
        if self._newest[ask.seq] is not None:
            self._newest[ask.seq] = None
            self.session.reuse(self._readable(ask.context), ask.seq)

    def _behind(self, seq: int, context: Sequence[int]) -> list[int]:
        """The tokens of a context that the session lacks."""
        return self._readable(context[self.session.length(seq) :])

    def _readable(self, tokens: Sequence[int]) -> list[int]:
        """Tokens with the model's last one in place of those that only the target has."""
        last = self.session.model.n_vocab - 1
        return [min(token, last) for token in tokens]

    def _extend(self, chains: Sequence[Chain], rows: Sequence[int], k: int) -> Likeliest:
        items = [(c.ask.seq, self._readable(c.tokens[-1:])) for c in chains]
        found = self.session.verify(items, choice=self._reader.choice(k))
        for chain in chains:
            self._pending[chain.ask.seq].append(chain.tokens[-1])
        return self._reader.likeliest(found, k)

    def _close(self, chains: Sequence[Chain]) -> None:
        """Nothing: chained tokens wait for the target's verdict."""

    def _abandon(self, chains: Sequence[Chain]) -> None:
        for seq in (chain.ask.seq for chain in chains):
            self.session.commit(seq, 0)
            self._pending[seq] = []


def check_vocabulary(target: Model, draft: Model) -> None:
    """Raise RequestError unless ids mean the same tokens in both models."""
    a, b = target.tokenizer, draft.tokenizer
    names = f"draft model {draft.name!r} for {target.name!r}"
    if abs(a.n_vocab - b.n_vocab) > MOST_PADDING:
        raise RequestError(
            f"{names}: vocabularies should differ by at most {MOST_PADDING} tokens, "
            f"they have {a.n_vocab} and {b.n_vocab}; use a draft model of the same family"
        )
    for i in range(FIRST_COMPARED, min(a.n_vocab, b.n_vocab)):
        if a.token_text(i) != b.token_text(i):
            raise RequestError(
                f"{names}: token {i} is {b.token_text(i)!r}, it should be {a.token_text(i)!r}; "
                "use a draft model of the same family"
            )
    for what in ("bos_id", "eos_id"):
        if getattr(a, what) != getattr(b, what):
            raise RequestError(
                f"{names}: {what} is {getattr(b, what)}, it should be {getattr(a, what)}; use a "
                "draft model of the same family"
            )
