"""Rounds of speculation over a session: propose, verify, accept, commit, observe.

A round may hold several sequences; they share the target's pass and the drafters' passes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from ..engine.buckets import MAX_TOKENS
from ..engine.chooser import Chooser
from ..engine.session import Session
from ..graph.errors import RequestError
from .adaptive import Budget, Length, Times
from .drafter import Ask, Draft, Drafter, Draw, Setup
from .options import Speculation
from .statistics import Statistics

NO_DRAFT = Draft([])
Pick = tuple[Drafter | None, Draft, float]  # the float: seconds that drafting took


@dataclass
class Entry:
    """A sequence in a round. token: its newest token, not evaluated yet; left: tokens wanted at
    most, None for any."""

    seq: int
    token: int
    chooser: Chooser
    left: int | None = None


@dataclass(frozen=True)
class Verified:
    """An entry after the target's pass. position: of the first token to choose; logits: f32
    [len(draft) + 1, n_vocab], valid until the next pass; draft_s: its share of the time
    of drafting; n: sequences in the pass."""

    entry: Entry
    drafter: Drafter | None
    draft: Draft
    position: int
    logits: np.ndarray
    hidden: np.ndarray | None
    draft_s: float
    n: int


class Speculator:
    """Drafters for a session, what they know of its sequences, and how well they do.

    The session should be able to forget `Speculation.longest` tokens (n_rs_seq); with fewer,
    drafts are shorter."""

    def __init__(self, session: Session, asked: Speculation) -> None:
        """Raises RequestError or ModelError for a drafter that cannot draft for this session."""
        self.session, self.asked = session, asked
        setup = Setup(
            session,
            asked.draft_max,
            asked.draft_min,
            asked.p_min,
            asked.draft_model,
            asked.draft_head,
            asked.lookup_static,
            asked.lookup_dynamic,
        )
        self.drafters = [cls.open(setup) for cls in asked.drafters]
        self.hidden = any(d.wants_hidden for d in self.drafters)
        self.statistics = Statistics()
        self._adapt_anew()
        self._known: list[list[int]] = [[] for _ in range(session.n_seqs)]
        self._host_bytes = session.host_bytes
        self._n_vocab = session.model.tokenizer.n_vocab or session.model.n_vocab
        session.prepare_drafts(min(asked.longest, self._window()), self.hidden)

    def _adapt_anew(self) -> None:
        """Forget what lengths of drafts paid."""
        asked = self.asked
        self._times, self._budget = Times(), Budget()
        self._lengths = {
            d.name: Length(self._times, self._budget, asked.most(type(d)), asked.draft_min)
            for d in self.drafters
        }

    def _window(self) -> int:
        """The most drafts that the session's memory can forget."""
        plan = self.session.plan
        bounded = plan.bytes.recurrent and not plan.strategy.reruns
        return plan.options.n_rs_seq if bounded else MAX_TOKENS - 1

    def prompt(self, seq: int, tokens: Sequence[int], kept: int = 0) -> np.ndarray:
        """Evaluate a prompt, of which the session holds the first `kept` tokens; logits f32
        [n_vocab] of its last token. Drafters see it too."""
        for drafter in self.drafters:
            drafter.begin(seq, tokens, kept)
            self._lengths[drafter.name].begin()
        known = self._known[seq] = list(tokens[:kept])
        logits = np.empty(0, np.float32)
        for part, found in self.session.chunks(tokens[kept:], seq, self.hidden):
            logits = found.logits[0]
            known += part
            for drafter in self.drafters:
                drafter.observe(seq, part, found.hidden, known)
        return logits

    def round(self, entries: Sequence[Entry]) -> list[Verified]:
        """Draft for all entries and run the target over them in one pass.

        Each result is then judged and handed to `finish`."""
        began = time.perf_counter()
        self._budget.earn()
        again = any(self.session.memory.rerun(e.seq) for e in entries)
        with self._newest(entries):
            picked = self._propose(entries)
        drafted, copied = time.perf_counter(), self.session.copy_s
        found = self.session.verify(
            [(e.seq, [e.token, *d.tokens]) for e, (_, d, _) in zip(entries, picked, strict=True)],
            sure=[1] * len(entries),
            hidden=self.hidden,
        )
        ended = time.perf_counter()
        pass_s, n = ended - drafted, len(entries)
        self._note_pass(len(found.logits), n, again, pass_s)
        stats = self.statistics
        stats.rounds += 1
        stats.draft_s += drafted - began
        copied = self.session.copy_s - copied
        stats.verify_s += pass_s - copied
        stats.rollback_s += copied
        results, at = [], 0
        for entry, (drafter, draft, draft_s) in zip(entries, picked, strict=True):
            rows = slice(at, at + 1 + len(draft.tokens))
            at = rows.stop
            hidden = found.hidden[rows] if found.hidden is not None else None
            position = self.session.length(entry.seq) + 1
            logits = found.logits[rows]
            results.append(Verified(entry, drafter, draft, position, logits, hidden, draft_s, n))
        return results

    def finish(self, judged: Verified, tokens: Sequence[int], ended: bool = False) -> None:
        """The tokens chosen for an entry, one at least: commit what they leave of the pass.

        ended: generation stops at the last of them, so that drafts behind it were not judged."""
        seq, draft = judged.entry.seq, judged.draft.tokens
        n = max(1, len(tokens))
        accepted = sum(a == b for a, b in zip(tokens, draft, strict=False))
        began = time.perf_counter()
        self.session.commit(seq, n)
        rollback_s = time.perf_counter() - began
        self._count(judged, len(tokens) if ended else len(draft), accepted, rollback_s)
        self.statistics.rollback_s += rollback_s
        self.statistics.rollback_bytes = self.session.host_bytes - self._host_bytes
        stay = [judged.entry.token, *draft][:n]
        self._known[seq] += stay
        hidden = judged.hidden[:n] if judged.hidden is not None else None
        began = time.perf_counter()
        for drafter in self.drafters:
            drafter.observe(seq, stay, hidden, self._known[seq])
            if drafter is judged.drafter:
                drafter.accept(seq, len(draft), accepted)
        plain = self._times.of(judged.n)
        if plain:
            self._budget.spend((time.perf_counter() - began) / plain)

    def close(self) -> None:
        """Let drafters write what they keep."""
        for drafter in self.drafters:
            drafter.close()

    def clear(self, seq: int) -> None:
        """Forget a sequence, in the session too."""
        self.session.clear(seq)
        self._known[seq] = []
        for drafter in self.drafters:
            drafter.clear(seq)

    def _note_pass(self, total: int, n: int, again: bool, seconds: float) -> None:
        """A pass of n sequences with so many new tokens took so long."""
        if total > n or not again:
            self._times.note(total, seconds)
        elif self._times.seen(n):
            # Tokens ran again in a pass without drafts: earlier drafts are to blame.
            self._budget.spend(seconds / self._times.of(n) - 1)

    def _count(self, judged: Verified, drafted: int, accepted: int, rollback_s: float) -> None:
        if judged.drafter is None:
            return
        drafted = min(drafted, len(judged.draft.tokens))
        self.statistics.count(drafted, accepted)
        beside = judged.draft_s + rollback_s
        length = self._lengths[judged.drafter.name]
        length.note(drafted, accepted, beside, judged.n)

    @contextmanager
    def _newest(self, entries: Sequence[Entry]) -> Iterator[None]:
        """Known tokens with the newest one behind them, as drafters are asked."""
        for entry in entries:
            self._known[entry.seq].append(entry.token)
        try:
            yield
        finally:
            for entry in entries:
                self._known[entry.seq].pop()

    def _propose(self, entries: Sequence[Entry]) -> list[Pick]:
        """The first drafter with an idea wins, for each entry by itself."""
        picked: list[Pick] = [(None, NO_DRAFT, 0.0)] * len(entries)
        room = [self._room(entry, len(entries)) for entry in entries]
        asked = False
        for drafter in self.drafters:
            limit = self._limit(drafter, len(entries))
            open_ = [i for i, (_, d, _) in enumerate(picked) if not d.tokens]
            asks = {i: self._ask(entries[i], min(limit, room[i])) for i in open_}
            asks = {i: ask for i, ask in asks.items() if ask.limit > 0}
            if not asks:
                continue
            asked = True
            began = time.perf_counter()
            drafts = drafter.draft(list(asks.values()))
            seconds = (time.perf_counter() - began) / len(asks)
            for (i, ask), draft in zip(asks.items(), drafts, strict=True):
                tokens = self._known_ids(draft.tokens[: ask.limit])
                tokens = entries[i].chooser.likely_legal(tokens)
                if tokens:
                    picked[i] = (drafter, _cut(draft, tokens), seconds)
                else:
                    self._lengths[drafter.name].waste(seconds, len(entries))
        if not asked:
            self.statistics.skipped += 1
        elif not any(d.tokens for _, d, _ in picked):
            self.statistics.empty += 1
        return picked

    def _known_ids(self, tokens: list[int]) -> list[int]:
        """The leading tokens that can be chosen at all."""
        bad = (i for i, token in enumerate(tokens) if not 0 <= token < self._n_vocab)
        return tokens[: next(bad, len(tokens))]

    def _ask(self, entry: Entry, limit: int) -> Ask:
        draw = None
        params = entry.chooser.sampler.params
        if self.asked.acceptance == "rejection" and not params.greedy:
            draw = Draw(params.temperature, entry.chooser.sampler.seed)
        return Ask(entry.seq, self._known[entry.seq], limit, draw)

    def _room(self, entry: Entry, n_entries: int) -> int:
        """Drafts that context, pass, memory and the request leave room for."""
        free = self.session.n_ctx - self.session.length(entry.seq)
        left = MAX_TOKENS if entry.left is None else entry.left
        again = self.session.memory.rerun(entry.seq)
        share = MAX_TOKENS // n_entries - 1 - again
        return max(0, min(free - 2, left - 1, share, self._window()))

    def _limit(self, drafter: Drafter, n: int) -> int:
        """How many drafts to ask a drafter for."""
        most = self.asked.most(type(drafter))
        # With a seed, drawn drafts have to repeat, and times of passes do not.
        if not self.asked.adaptive or self.asked.acceptance == "rejection":
            return most
        return self._lengths[drafter.name].choose(n)


def _cut(draft: Draft, tokens: list[int]) -> Draft:
    """The first tokens of a draft, with what they were drawn from."""
    drawn = draft.distributions
    return Draft(tokens, drawn[: len(tokens)] if drawn is not None else None)


def check_session(session: Session, asked: Speculation) -> None:
    """Raise RequestError for a session whose memory can forget nothing."""
    plan = session.plan
    if plan.bytes.recurrent and plan.options.n_rs_seq == 0:
        raise RequestError(
            "this session cannot forget drafts; make it with n_rs_seq of the most drafts, here "
            f"model.session(n_rs_seq={asked.longest})"
        )
