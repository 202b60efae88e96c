"""Decoding with drafts against plain decoding, token by token, every pass on record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine import Model, Pass, Sampler, SamplerParams
from ..engine.bound_step import Extra, Items
from ..engine.chooser import Chooser
from ..engine.drafting import Entry
from ..engine.sampler import DeviceDraw
from ..engine.sequences import Sequences
from ..engine.session_plan import SessionPlan
from ..graph.errors import RequestError
from ..models.step import Choice
from .options import Speculation
from .speculator import Speculator


@dataclass
class Recorded:
    """A pass of sequence 0 and the arguments that it was made with. verified: whether its tokens
    were pending until a commit; committed: how many of them stayed; held: whether the session held
    the text afterwards, and nothing else."""

    tokens: list[int]
    verified: bool
    arguments: dict[str, Any]
    committed: int = 0
    held: bool = True


class Recorder(Sequences):
    """Sequences with a record of their passes; prompt: how many of them the prompt took."""

    def __init__(self, model: Model, plan: SessionPlan) -> None:
        self.passes: list[Recorded] = []
        self.prompt = 0
        super().__init__(model, plan)

    def evaluate(
        self,
        items: Items,
        want: str = "last",
        hidden: bool = False,
        kind: str = "step",
        extra: Extra | None = None,
        candidates: int = 1,
        choice: Choice | None = None,
    ) -> Pass:
        """One pass, recorded."""
        found = super().evaluate(items, want, hidden, kind, extra, candidates, choice)
        tokens = list(items[0][1])
        arguments = {"want": want, "hidden": hidden, "kind": kind, "candidates": candidates}
        self.passes.append(Recorded(tokens, False, arguments, len(tokens)))
        return found

    def verify(
        self,
        items: Items,
        sure: Sequence[int] | None = None,
        want: str = "all",
        hidden: bool = False,
        extra: Extra | None = None,
        choice: Choice | None = None,
        draws: Sequence[DeviceDraw | None] = (),
    ) -> Pass:
        """One pass, recorded."""
        found = super().verify(items, sure, want, hidden, extra, choice, draws)
        arguments = {"sure": sure, "want": want, "hidden": hidden, "draws": draws}
        self.passes.append(Recorded(list(items[0][1]), True, arguments))
        return found

    def commit(self, seq: int, n: int) -> None:
        """What stays of the recorded pass."""
        super().commit(seq, n)
        self.passes[-1].committed = n


def play(session: Sequences, recorded: Recorded, commit: bool = True) -> None:
    """Make a recorded pass in another session."""
    items = [(0, recorded.tokens)]
    if not recorded.verified:
        session.evaluate(items, **recorded.arguments)
        return
    session.verify(items, **recorded.arguments)
    if commit:
        session.commit(0, recorded.committed)


@dataclass(frozen=True)
class Asked:
    """What is to be generated. plain, drafted: the sessions' plans; the prompt's tokens; n: how
    many tokens to generate, -1 to the end token or the context's end; logits: whether those have
    to be equal bit for bit too."""

    plain: SessionPlan
    drafted: SessionPlan
    speculation: Speculation
    prompt: Sequence[int]
    n: int
    params: SamplerParams
    ignore_eos: bool = False
    logits: bool = False


@dataclass(frozen=True)
class Parting:
    """The first token that differs, or whose logits do. index: among the generated ones; tokens,
    logits: of the plain run and of the drafted one, f32 [n_vocab]; row: of the logits that it was
    chosen from, counted over the tokens of the last recorded pass."""

    index: int
    tokens: tuple[int, int]
    row: int
    logits: tuple[np.ndarray, np.ndarray]

    @property
    def top2_gap(self) -> float:
        """How far the likeliest token of the plain run is before the next."""
        top = np.partition(self.logits[0].astype(np.float64), -2)[-2:]
        return float(top[1] - top[0])

    @property
    def largest(self) -> float:
        """The largest difference between the two rows of logits; 0.0 for the same bits."""
        a, b = self.logits
        if a.tobytes() == b.tobytes():
            return 0.0
        return float(np.abs(a.astype(np.float64) - b).max())


class Check:
    """Both runs side by side. tokens: what they agree on; parting: None while they do."""

    def __init__(self, model: Model, asked: Asked) -> None:
        """Raises RequestError for a prompt that does not fit, and what opening drafters raises."""
        room = asked.plain.n_ctx - len(asked.prompt)
        if not asked.prompt or room < 0:
            raise RequestError(
                f"the prompt should have 1 to {asked.plain.n_ctx} tokens, got "
                f"{len(asked.prompt)}; use a larger context (n_ctx)"
            )
        self.model, self.asked = model, asked
        self.plain = Recorder(model, asked.plain)
        self.drafted = Recorder(model, asked.drafted)
        self.speculator = Speculator(self.drafted, asked.speculation)
        self.tokens: list[int] = []
        self.parting: Parting | None = None
        self._n = room + 1 if asked.n < 0 else min(asked.n, room + 1)
        self._ended = self._n == 0
        self._n_vocab = model.tokenizer.n_vocab or model.n_vocab
        self._rows = np.empty((0, 0), np.float32)  # logits of the round in progress

    @property
    def rounds(self) -> list[Recorded]:
        """The passes after the prompt."""
        return self.drafted.passes[self.drafted.prompt :]

    def run(self) -> None:
        """Generate until an end or the first difference."""
        prompt = self.asked.prompt
        first, second = self._chooser(), self._chooser()
        self._rows = self.speculator.prompt(0, prompt)[None]
        logits = self.plain.prefill(prompt)
        for session in (self.plain, self.drafted):
            session.prompt = len(session.passes)
        if not self._ended:
            chosen = second.choose(self._rows[0], len(prompt))
            last = len(self.drafted.passes[-1].tokens) - 1
            self._take(first.choose(logits, len(prompt)), chosen, logits, 0, last)
        while not self._ended:
            self._round(first, second)

    def _round(self, first: Chooser, second: Chooser) -> None:
        left = self._n - len(self.tokens)
        proposal, self._rows = self.speculator.round([Entry(0, self.tokens[-1], second, left)])[0]
        taken: list[int] = []
        for row, chosen in enumerate(self.speculator.judge(proposal, self._rows)):
            taken.append(chosen)
            logits = self.plain.decode(self.tokens[-1])
            self._take(first.choose(logits, self.plain.length()), chosen, logits, row, row)
            if self._ended:
                break
        self.speculator.finish(proposal, taken, self._ended)
        held = [*self.asked.prompt, *self.tokens[: None if self.parting else -1]]
        self.drafted.passes[-1].held = self.drafted.tokens() == held

    def _take(self, plain: int, drafted: int, logits: np.ndarray, at: int, row: int) -> None:
        """A token of each run. at: its row among the drafted run's logits at hand; row: of the
        pass."""
        rows = logits[: self._n_vocab], self._rows[at, : self._n_vocab]
        unlike = self.asked.logits and rows[0].tobytes() != rows[1].tobytes()
        if plain != drafted or unlike:
            rows = rows[0].copy(), rows[1].copy()
            self.parting = Parting(len(self.tokens), (plain, drafted), row, rows)
            self._ended = True
            return
        ends = plain in self.model.tokenizer.eog_ids and not self.asked.ignore_eos
        self.tokens.append(plain)
        self._ended = ends or len(self.tokens) == self._n

    def _chooser(self) -> Chooser:
        return Chooser(Sampler(self.asked.params, self._n_vocab, self.asked.prompt), self._n_vocab)
