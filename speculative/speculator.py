"""Rounds of speculation over a session: propose, judge, commit, observe. The pass between is the
engine's, which other sequences share."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from ..engine import Session
from ..engine.chooser import Chooser
from ..engine.drafting import Entry
from ..engine.draws import drawing
from ..engine.prompts import Prompt
from ..engine.sampler import DeviceDraw
from ..engine.sequences import Sequences
from ..graph.errors import Unsupported
from .acceptance import ByChoice
from .adaptive import Budget, Length, Times
from .calling import call
from .drafter import Ask, Drafter, Draw
from .known import REJECTION
from .proposing import Open, Proposal, propose
from .resting import ROWS_BEFORE, Distance, Rest
from .statistics import Statistics, add_shared
from .trace import find_trace, traced
from .windows import check_window, room, window

if TYPE_CHECKING:
    from .options import Speculation

# Passes behind a prompt that bring weights and buffers back into the caches, and so take longer.
BEHIND_PROMPT = 2
MOST_UNREAD = 16  # tokens of a text that drafters which are not asked need not have seen
Unread = tuple[int, np.ndarray | None]  # a token, and its hidden row


class Speculator:
    """Drafters for a session, what they know of its sequences, and how well they do.

    The session should be able to forget `Speculation.longest` tokens (n_rs_seq); with fewer,
    drafts are shorter. window: the most that it can forget; statistics_in_all: of all sequences and
    texts."""

    def __init__(self, session: Session | Sequences, asked: Speculation) -> None:
        """Raises RequestError or ModelError for a drafter that cannot draft for this session."""
        self.session, self.asked = session, asked
        sequences = session.sequences if isinstance(session, Session) else session
        check_window(sequences, asked)
        self.sequences, n_seqs = sequences, sequences.n_seqs
        setup = asked.setup(sequences)
        self.drafters = [cls.open(setup) for cls in asked.drafters]
        self._trace = find_trace(asked.trace)
        self._longest = max(asked.most(type(d)) for d in self.drafters)
        # Chosen for a round of so many sequences, which is in progress or follows.
        self._limits: dict[str, int] = {}
        self._limits_of = 0
        self.hidden = any(d.wants_hidden for d in self.drafters)
        self.statistics_in_all = Statistics()
        self._of_seq = [Statistics() for _ in range(n_seqs)]
        self.adapt_anew()
        self._known: list[list[int]] = [[] for _ in range(n_seqs)]
        self._hidden: dict[int, np.ndarray | None] = {}
        self._round: list[int] = []  # the sequences of the round in progress
        self._pass: tuple[int, int, float] | None = None  # tokens, sequences, seconds
        self._asking_s = 0.0  # of the round in progress, beside what drafters took
        self._untimed = 0  # passes to come that say nothing of how long others take
        self._resting: Rest | None = None  # rounds without drafts that are yet to be counted
        self._distance = Distance()
        self._rested = False  # whether devices choose in rounds without drafts
        self._unread: list[list[Unread]] = [[] for _ in range(n_seqs)]
        self._copies = sequences.storage.reruns  # checkpoints alone copy states
        self._copied = (0.0, 0)
        self._n_vocab = sequences.model.tokenizer.n_vocab or sequences.model.n_vocab
        # With a seed, drawn drafts have to repeat, and times of passes do not.
        self._adaptive = asked.adaptive and asked.acceptance != REJECTION
        self._judge = asked.judge
        self.window = window(sequences.plan)
        self._prepared = set[int]()  # how many candidates rows draw from; 0: none do

    def prepare(self, draws: Sequence[DeviceDraw | None] = (None,)) -> None:
        """Compile what drafts of any number of sequences run, and rounds of the host's in which
        they are far. draws: how tokens are chosen, as `prepare_for` has it."""
        for draw in draws:
            with suppress(Unsupported):
                self.prepare_for(draw)
        if self.hidden and self._adaptive:
            self.sequences.prepare_drafts(0)
        for drafter in self.drafters:
            call(drafter, "prepare")

    def prepare_for(self, draw: DeviceDraw | None) -> None:
        """Compile what judging drafts of any number of sequences runs where a device draws each
        token so; None: where the host chooses. Raises Unsupported where the device cannot."""
        kind = 0 if draw is None else draw.candidates
        if kind not in self._prepared:
            most = min(self._longest, self.window)
            choice = None if draw is None else drawing(self.sequences.model, [draw])
            self.sequences.prepare_drafts(most, self.hidden, choice)
            self._prepared.add(kind)

    def adapt_anew(self) -> None:
        """Forget what lengths of drafts paid."""
        asked = self.asked
        self._times, self._budget = Times(), Budget()
        self._lengths = {
            d.name: Length(self._times, self._budget, asked.most(type(d)), asked.draft_min)
            for d in self.drafters
        }

    def begin(self, seq: int, tokens: Sequence[int], kept: int = 0) -> None:
        """A text begins with these tokens, of which the session holds the first `kept`; the others
        come by `watch`."""
        self._settle()
        self._read(seq)  # the end of the text before, which may be this one's beginning
        self._untimed = BEHIND_PROMPT
        self._known[seq] = list(tokens[:kept])
        self._of_seq[seq] = Statistics()
        for drafter in self.drafters:
            call(drafter, "begin", seq, tokens, kept)
            self._lengths[drafter.name].begin()

    def watch(self, seq: int, tokens: Sequence[int], hidden: np.ndarray | None) -> None:
        """Further tokens of a text were evaluated; hidden: f32 [len(tokens), n_embd] or None.
        Drafters see them before they are asked again."""
        if len(tokens) > 1:
            self._read(seq)
            self._observe(seq, tokens, hidden)
            return
        unread = self._unread[seq]
        unread.append((tokens[0], hidden if hidden is None else hidden.copy()))
        if len(unread) >= MOST_UNREAD:
            self._read(seq)

    def _read(self, seq: int) -> None:
        """Show drafters what they have not seen."""
        unread, self._unread[seq] = self._unread[seq], []
        for known, some in groupby(unread, lambda pair: pair[1] is not None):
            tokens, rows = zip(*some, strict=True)
            self._observe(seq, list(tokens), np.concatenate(rows) if known else None)

    def _observe(self, seq: int, tokens: Sequence[int], hidden: np.ndarray | None) -> None:
        known = self._known[seq]
        known += tokens
        for drafter in self.drafters:
            call(drafter, "observe", seq, tokens, hidden, known)

    def prompt(self, seq: int, tokens: Sequence[int], kept: int = 0) -> np.ndarray:
        """Evaluate a prompt, of which the session holds the first `kept` tokens; logits f32
        [n_vocab] of its last token. Drafters see it too."""
        self.prepare_for(None)
        self.begin(seq, tokens, kept)
        work = Prompt(self.sequences, seq, tokens[kept:], self.hidden)
        logits = np.empty(0, np.float32)
        while not work.done:
            part, found = work.step()
            logits = found.logits[0]
            self.watch(seq, part, found.hidden)
        return logits

    def rests(self, company: int) -> bool:
        """Whether no drafter would be asked in a round of `company` sequences, which begins."""
        resting = self._resting
        if resting is not None and resting.company == company and resting.left > 0:
            return True
        self._settle()
        if self._trace is not None:
            return False  # it shows every round
        if self._look(company):
            return False
        self._resting = Rest(company, 1 + self._rest_of_all())
        return True

    def rests_on(self) -> bool:
        """Whether nobody will be asked in the round behind the one in progress, either, while as
        many sequences are in it. Looks at what pays one round early where that is not known."""
        resting = self._resting
        if resting is None or resting.asked or resting.left < 1:
            return False
        if resting.left > 1:
            return True
        if self._limits:
            return False  # it was looked at before
        self._count_rests(resting)
        resting.look_behind(self._lengths.values())
        if self._look(resting.company):
            return False
        resting.most += 1 + self._rest_of_all()
        return True

    def _look(self, company: int) -> bool:
        """Whether drafts are to be asked for in a round of `company` sequences, in which
        `self._limits` is how many."""
        self._limits = {d.name: self.limit(d, company) for d in self.drafters}
        self._limits_of = company
        drafts = any(self._limits.values())
        self._distance = Distance(company, 0 if drafts else self._far(company))
        if not drafts:
            self._limits = {}
        return drafts

    def _far(self, company: int) -> int:
        """How many rounds of `company` sequences drafts that need hidden rows are away."""
        lengths = (self._lengths[d.name] for d in self.drafters if d.wants_hidden)
        return min((length.far(company) for length in lengths), default=0)

    def _rest_of_all(self) -> int:
        """Rounds behind the one that was chosen for last in which no length looks at what pays."""
        return min(length.resting for length in self._lengths.values())

    def reads(self, company: int) -> bool:
        """Whether drafters want the hidden rows of a pass of `company` sequences: not while drafts
        are far."""
        if not (self.hidden and self._adaptive):
            return self.hidden
        if self._distance.company != company:
            self._distance = Distance(company, self._far(company))
        return self._distance.rounds <= ROWS_BEFORE

    def note_rest(
        self, seqs: Sequence[int], company: int, times: tuple[float, float] | None
    ) -> None:
        """A round is over in which nobody was asked: its sequences, and seconds of its pass of
        `company` tokens and of all of it, None where these are not known."""
        resting = self._resting
        if resting is None:
            return
        if resting.asked:
            resting.company = company  # others for which the device chooses joined its pass
        resting.note(seqs, times)
        self._distance.rounds -= 1

    def _settle(self) -> None:
        """Count the rounds without drafts."""
        resting, self._resting = self._resting, None
        if resting is not None:
            self._count_rests(resting)

    def _count_rests(self, resting: Rest) -> None:
        """Count those that are over."""
        n = resting.rounds
        if not n:
            return
        self._rested = True
        self._count_rest(resting)
        if not resting.asked:  # else `propose` has counted the round
            self._budget.earn(n)
            self.statistics_in_all.note_skipped(n)
            for seq, rounds in resting.of_seq.items():
                self._of_seq[seq].note_skipped(rounds)
        resting.count(() if resting.asked else self._lengths.values())

    def _count_rest(self, resting: Rest) -> None:
        """What its rounds took."""
        n, company = resting.timed, resting.company
        if not n:
            return
        self._note_time(company, resting.pass_s / n, n)
        self._times.note_beside(False, (resting.whole_s - resting.pass_s) / n)
        for seq, rounds in resting.of_seq.items():
            share = resting.pass_s / n / company * rounds
            self.statistics_in_all.verify_s += share
            self._of_seq[seq].verify_s += share

    def propose(self, entries: Sequence[Entry], company: int) -> list[Proposal]:
        """A draft for each entry of a pass of `company` sequences."""
        began = time.perf_counter()
        self._settle()
        self._round = [entry.seq for entry in entries]
        for seq in self._round:
            self._read(seq)
        self._budget.earn()
        opened = [Open(entry) for entry in entries]
        for entry in entries:
            self._known[entry.seq].append(entry.token)
        try:
            propose(self.drafters, opened, company, self, self._n_vocab)
        finally:
            for entry in entries:
                self._known[entry.seq].pop()
        asked = any(o.asked for o in opened)
        self._distance = Distance(company, 0 if asked else self._far(company))
        seconds = time.perf_counter() - began
        self._asking_s = seconds - sum(o.spent_s for o in opened)
        self._count_round(opened, seconds)
        if self._copies:
            self._copied = self._copied_so_far()
        return [Proposal(o.entry, o.drafter, o.draft, o.draft_s, company, o.asked) for o in opened]

    @property
    def can_withdraw(self) -> bool:
        """Unless every round is to be shown."""
        return self._trace is None

    def withdraw(self, company: int) -> None:
        """No drafter had an idea, and a device chooses."""
        self._resting = Rest(company, 1, asked=True)
        plain = self._times.of(company)
        if plain:
            self._budget.spend(self._asking_s / plain)

    def note_pass(self, tokens: int, sequences: int, again: bool, seconds: float) -> None:
        """The pass of the round had so many new tokens and sequences, and took so long. again:
        committed tokens ran again in it."""
        self._pass = (tokens, sequences, seconds)
        if tokens > sequences or not again:
            self._note_time(tokens, seconds)
        elif self._times.seen(sequences):
            # Tokens ran again in a pass without drafts: earlier drafts are to blame.
            self._budget.spend(seconds / self._times.of(sequences) - 1)
        if self._copies:
            before, now = self._copied, self._copied_so_far()
            seconds -= now[0] - before[0]
            self._add_rollback(self._round, now[0] - before[0], now[1] - before[1])
        self._add("verify_s", seconds, self._round)

    def _note_time(self, tokens: int, seconds: float, passes: int = 1) -> None:
        """Passes of so many tokens took so long each."""
        if self._untimed > 0:
            self._untimed -= passes
        else:
            self._times.note(tokens, seconds, passes)

    def note_round(self, seconds: float) -> None:
        """The round is over; its pass and all that came behind took so long."""
        if self._pass is None:
            return
        (tokens, sequences, pass_s), self._pass = self._pass, None
        beside = seconds - pass_s + self._asking_s
        if tokens > sequences or not self._rested:
            self._times.note_beside(tokens > sequences, beside)
        plain = self._times.of(sequences)
        if tokens == sequences and plain:
            self._budget.spend(self._times.beside / plain)

    def judge(self, proposal: Proposal, logits: np.ndarray) -> Iterator[int]:
        """The tokens of a round, each one chosen. logits: f32 [len(draft) + 1, n_vocab], used
        until `finish`."""
        return self._judge(proposal.entry.chooser, logits, proposal.draft, self._position(proposal))

    def reads_logits(self, chooser: Chooser) -> bool:
        """Whether judging needs logits, though a device could choose."""
        rule = self._judge
        return not isinstance(rule, ByChoice) or rule.reads_logits(chooser)

    def judge_choices(self, proposal: Proposal, choices: Iterable[int]) -> Iterator[int]:
        """As `judge`, where `reads_logits` is false. choices: what plain decoding would choose for
        each of the rows, in order."""
        assert isinstance(self._judge, ByChoice)
        return self._judge.by_choice(
            proposal.entry.chooser, choices, proposal.draft, self._position(proposal)
        )

    def _position(self, proposal: Proposal) -> int:
        """Of the token that the first row is for."""
        return self.sequences.memory.length(proposal.entry.seq) + 1

    def round(self, entries: Sequence[Entry]) -> list[tuple[Proposal, np.ndarray]]:
        """A round of these sequences alone: drafts, and the target's pass over them. Each proposal
        comes with its rows of logits, f32 [len(draft) + 1, n_vocab]; `finish` is to follow for
        each, and finds the hidden rows here."""
        proposals, memory = self.propose(entries, len(entries)), self.sequences.memory
        again = any(memory.rerun(entry.seq) for entry in entries)
        began = time.perf_counter()
        found = self.sequences.verify(
            [(p.entry.seq, [p.entry.token, *p.tokens]) for p in proposals],
            sure=[1] * len(proposals),
            hidden=self.reads(len(proposals)),
        )
        seconds = time.perf_counter() - began
        self.note_pass(len(found.logits), len(proposals), again, seconds)
        judged, at = [], 0
        for p in proposals:
            rows = slice(at, at + 1 + len(p.tokens))
            at = rows.stop
            self._hidden[p.entry.seq] = found.hidden[rows] if found.hidden is not None else None
            judged.append((p, found.logits[rows]))
        return judged

    def finish(
        self,
        proposal: Proposal,
        tokens: Sequence[int],
        ended: bool = False,
        hidden: np.ndarray | None = None,
    ) -> None:
        """The tokens chosen for an entry, one at least: commit what they leave of the pass.

        ended: generation stops at the last of them, so that drafts behind it were not judged.
        hidden: f32 [len(draft) + 1, n_embd], where drafters want it."""
        seq, draft, n = proposal.entry.seq, proposal.tokens, max(1, len(tokens))
        accepted = sum(a == b for a, b in zip(tokens, draft, strict=False)) if draft else 0
        length, moved = self.sequences.evaluated(seq), self._copied_so_far()[1]
        began = time.perf_counter()
        self.sequences.commit(seq, n)
        rollback_s = time.perf_counter() - began
        self._count(proposal, len(tokens) if ended else len(draft), accepted, rollback_s)
        self._add_rollback([seq], rollback_s, self._copied_so_far()[1] - moved)
        stay = [proposal.entry.token, *draft][:n]
        self._known[seq] += stay
        hidden = self._hidden.pop(seq, hidden)
        began = time.perf_counter()
        for drafter in self.drafters:
            rows = hidden[:n] if hidden is not None else None
            call(drafter, "observe", seq, stay, rows, self._known[seq])
            if drafter is proposal.drafter:
                call(drafter, "accept", seq, len(draft), accepted)
        plain = self._times.of(proposal.company)
        if plain:
            self._budget.spend((time.perf_counter() - began) / plain)
        if self._trace is not None:
            tokenizer = self.sequences.model.tokenizer
            self._trace(traced(proposal, tokens, accepted, length, tokenizer))

    def statistics(self, seq: int) -> dict[str, Any]:
        """Fields for the timings of a sequence's text. draft_max: there if drafts were shorter
        than asked for, since the session can forget no more."""
        self._settle()
        found = self._of_seq[seq].as_dict()
        if self.window < self._longest:
            found["draft_max"] = self.window
        return found

    def close(self) -> None:
        """Let drafters see all texts to their ends, and write what they keep."""
        try:
            for seq in range(len(self._unread)):
                self._read(seq)
        finally:
            for drafter in self.drafters:
                drafter.close()

    def clear(self, seq: int) -> None:
        """Forget a sequence, in the session too."""
        self.sequences.clear(seq)
        self._known[seq], self._unread[seq] = [], []
        for drafter in self.drafters:
            drafter.clear(seq)

    def _count_round(self, opened: Sequence[Open], seconds: float) -> None:
        self._add("draft_s", seconds, [o.entry.seq for o in opened])
        drafted = any(o.draft.tokens for o in opened)
        self.statistics_in_all.note_round(any(o.asked for o in opened), drafted)
        for o in opened:
            self._of_seq[o.entry.seq].note_round(o.asked, bool(o.draft.tokens))

    def _count(self, proposal: Proposal, drafted: int, accepted: int, rollback_s: float) -> None:
        drafter = proposal.drafter
        if drafter is None:
            return
        drafted = min(drafted, len(proposal.tokens))
        for stats in (self.statistics_in_all, self._of_seq[proposal.entry.seq]):
            stats.count(drafter.name, drafted, accepted)
        beside = proposal.draft_s + rollback_s
        self._lengths[drafter.name].note(drafted, accepted, beside, proposal.company)

    def _copied_so_far(self) -> tuple[float, int]:
        """Seconds and bytes of copies of states."""
        storage = self.sequences.storage
        return (storage.copy_s, storage.host_bytes) if self._copies else (0.0, 0)

    def _add_rollback(self, seqs: Sequence[int], seconds: float, n: int) -> None:
        """Time and bytes that these sequences share."""
        self._add("rollback_s", seconds, seqs)
        if n:
            self._add("rollback_bytes", n, seqs)

    def _add(self, name: str, amount: float, seqs: Sequence[int]) -> None:
        add_shared(name, amount, self.statistics_in_all, [self._of_seq[seq] for seq in seqs])

    def ask(self, entry: Entry, limit: int) -> Ask:
        """The entry as drafters are asked for it, within `propose`."""
        draw = None
        params = entry.chooser.sampler.params
        if self.asked.acceptance == REJECTION and not params.greedy:
            draw = Draw(params.temperature, entry.chooser.sampler.seed)
        return Ask(entry.seq, self._known[entry.seq], limit, draw)

    def room(self, entry: Entry, company: int) -> int:
        """Drafts that context, pass, memory and the request leave room for."""
        return min(self.window, room(self.sequences, entry, company))

    def limit(self, drafter: Drafter, company: int) -> int:
        """How many drafts to ask a drafter for; once in each round."""
        if self._limits_of != company:
            self._limits = {}
        chosen = self._limits.pop(drafter.name, None)
        if chosen is not None:
            return chosen
        length = self._lengths[drafter.name]
        return length.choose(company) if self._adaptive else length.most

    def waste(self, drafter: Drafter, seconds: float, company: int) -> None:
        """The drafter was asked for a draft, and gave none."""
        self._lengths[drafter.name].waste(seconds, company)
