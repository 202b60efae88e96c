"""Rounds: one pass over the newest token of several requests and the drafts behind it, of which the
host then chooses the tokens. Without drafts it is a plain decode step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..graph.errors import RiverrunError, Unsupported
from ..models.step import CANDIDATES
from .buckets import step_counts
from .drafting import Drafting, Entry
from .draws import sound
from .request import Request, by_drafting
from .rows import Pass
from .sampler import DeviceDraw
from .sequences import Sequences


@dataclass(slots=True)
class Turn:
    """A request's share of a round. proposal: what its drafters made, None without drafters; draw:
    how the device chooses for it in the pass, None where its logits are wanted."""

    request: Request
    proposal: Any = None
    drafted: Sequence[int] = ()
    draw: DeviceDraw | None = None


class Rounds:
    """The rounds of a session."""

    def __init__(self, sequences: Sequences, fits: Callable[[Mapping[Request, int]], bool]) -> None:
        """fits: whether there is room for so many tokens of some requests."""
        self.sequences, self._fits = sequences, fits
        self._lists = True  # whether the device gives shortlists
        self._draws = True  # whether it draws behind drafts

    def run(self, requests: Sequence[Request]) -> list[Request]:
        """One round of all. Every request gets a token at least, or fails, and then alone; but for
        those returned, where nothing was drafted for anyone: a device is to choose for these."""
        turns = self._propose(requests) if requests else []
        if not turns:
            return []
        if self._withdraw(turns):
            return [turn.request for turn in turns]
        self._complete(turns)
        return []

    def _shorten(self, turns: Sequence[Turn]) -> None:
        """Where pages are short, draft no further than the last page of each sequence reaches."""
        if not any(turn.drafted for turn in turns):
            return
        if self._fits({turn.request: 1 + len(turn.drafted) for turn in turns}):
            return
        for turn in turns:
            spare = self.sequences.memory.spare(turn.request.seq)
            if turn.drafted and spare is not None:
                turn.proposal = turn.proposal.cut(max(0, spare - 1))
                turn.drafted = turn.proposal.tokens

    def _complete(self, turns: Sequence[Turn]) -> None:
        """The pass of all, and what comes of it."""
        self._shorten(turns)
        began = time.perf_counter()
        try:
            self._evaluate(turns)
            seconds = time.perf_counter() - began
            for drafting in _draftings(turns):
                drafting.note_round(seconds)
        except RiverrunError as error:
            if len(turns) == 1:
                turns[0].request.fail(error)
                return
            # Which of them the pass failed for is not known, so each runs by itself.
            for turn in turns:
                self._complete(self._propose([turn.request]))

    def resting(self, requests: Sequence[Request]) -> list[Request]:
        """Those whose drafters would not be asked in the round that begins, so that the device can
        choose for them."""
        found: list[Request] = []
        for drafting, group in by_drafting(requests):
            if all(r.on_device for r in group) and drafting.rests(len(requests)):
                found += group
        return found

    def _propose(self, requests: Sequence[Request]) -> list[Turn]:
        """Drafts of every request that has drafters; those that draft together are asked once."""
        turns = [Turn(request) for request in requests]
        of = {turn.request: turn for turn in turns}
        groups = [[of[request] for request in group] for _, group in by_drafting(requests)]
        failed = [t for group in groups for t in self._draft(group, len(turns))]
        return [turn for turn in turns if turn not in failed] if failed else turns

    def _draft(self, group: list[Turn], company: int) -> list[Turn]:
        """The drafts of one group; those of it that failed."""
        drafting = group[0].request.drafting
        assert drafting is not None
        try:
            found = drafting.propose([_entry(turn.request) for turn in group], company)
        except Exception as error:
            if len(group) == 1:
                group[0].request.fail(error)
                return group
            return [t for turn in group for t in self._draft([turn], company)]
        for turn, proposal in zip(group, found, strict=True):
            turn.proposal, turn.drafted = proposal, proposal.tokens
        return []

    def _withdraw(self, turns: Sequence[Turn]) -> bool:
        """Whether a device can choose for all, since there are no drafts to judge."""
        if any(turn.drafted or not turn.request.on_device for turn in turns):
            return False
        draftings = _draftings(turns)
        if not all(drafting.can_withdraw for drafting in draftings):
            return False
        for drafting in draftings:
            drafting.withdraw(len(turns))
        return True

    def _evaluate(self, turns: Sequence[Turn]) -> None:
        """The pass of all, and what each request makes of its rows."""
        if all(turn.proposal is None for turn in turns):
            self._step(turns)
        else:
            self._verify(turns)

    def _step(self, turns: Sequence[Turn]) -> None:
        """A pass without drafts."""
        items = [(turn.request.seq, (turn.request.token,)) for turn in turns]
        shortens = any(self._shortens(turn.request) for turn in turns)
        found = self.sequences.evaluate(items, candidates=CANDIDATES if shortens else 1)
        for i, turn in enumerate(turns):
            short = found.shortlists and (found.shortlists[0][i], found.shortlists[1][i])
            with self._changing(turn.request):
                self._take_one(turn.request, found.logits[i], short)

    def prepare(self, request: Request) -> None:
        """Compile what a request alone will run, where that is a pass of its own kind."""
        if request.drafting is not None:
            self._prepare_drafts(request, request.drafting)
        elif not request.on_device and self._shortens(request):
            self._prepare_lists(1)

    def prepare_all(self) -> None:
        """Compile passes without drafts, of any number of requests."""
        for n in step_counts(self.sequences.n_seqs):
            self.sequences.runner.prepare_step(n, n, n)
            if self._lists:
                self._prepare_lists(n)

    def _prepare_drafts(self, request: Request, drafting: Drafting) -> None:
        try:
            drafting.prepare_for(self._draw(request))
        except Unsupported:
            self._draws = False
            drafting.prepare_for(None)

    def _prepare_lists(self, n: int) -> None:
        try:
            self.sequences.runner.prepare_step(n, n, n, candidates=CANDIDATES)
        except Unsupported:
            self._lists = False

    def _shortens(self, request: Request) -> bool:
        """Whether a shortlist spares reading all logits of its row."""
        return self._lists and request.drafting is None and request.chooser.shortens

    def _verify(self, turns: Sequence[Turn]) -> None:
        sequences = self.sequences
        hidden = any(d.reads(len(turns)) for d in _draftings(turns))
        again = any(sequences.memory.rerun(turn.request.seq) for turn in turns)
        for turn in turns:
            turn.draw = self._draw(turn.request)
        began = time.perf_counter()
        found = sequences.verify(
            [(turn.request.seq, (turn.request.token, *turn.drafted)) for turn in turns],
            sure=[1] * len(turns),
            hidden=hidden,
            draws=[turn.draw for turn in turns],
        )
        seconds = time.perf_counter() - began
        tokens = sum(1 + len(turn.drafted) for turn in turns)
        for drafting in _draftings(turns):
            drafting.note_pass(tokens, len(turns), again, seconds)
        self._judge(turns, found)

    def _draw(self, request: Request) -> DeviceDraw | None:
        """How the device is to choose for a request in a pass with drafts: as it does without them,
        if it does. None: its logits are wanted."""
        if not (self._draws and request.on_device) or request.drafting is None:
            return None
        return None if request.drafting.reads_logits(request.chooser) else request.draw

    def _judge(self, turns: Sequence[Turn], found: Pass) -> None:
        """Choose the tokens of every request, or take those that the device has chosen."""
        at, shown = 0, 0  # rows of the pass, and those of its logits
        tokens, largest = list[int](), list[float]()
        if found.tokens is not None and found.largest is not None:
            tokens, largest = found.tokens.tolist(), found.largest.tolist()
        for turn in turns:
            n = 1 + len(turn.drafted)
            rows = slice(at, at + n)
            at += n
            chosen = logits = None
            if turn.draw is not None:
                chosen = sound(tokens[rows], largest[rows])
            else:
                logits = found.logits[shown : shown + n]
                shown += n
            with self._changing(turn.request):
                if turn.proposal is None:
                    assert logits is not None
                    self.sequences.commit(turn.request.seq, 1)
                    self._take_one(turn.request, logits[0])
                else:
                    hidden = found.hidden[rows] if found.hidden is not None else None
                    self._take_drafts(turn, chosen, logits, hidden)

    @contextmanager
    def _changing(self, request: Request) -> Iterator[None]:
        """Within, what a request has chosen and what its sequence holds may disagree; an error
        within fails it alone."""
        request.changing = True
        try:
            yield
        except Exception as error:
            request.fail(error)
        request.changing = False

    def _take_one(self, request: Request, logits: np.ndarray, shortlist: Any = None) -> None:
        """Choose the token behind what the sequence holds."""
        position = self.sequences.memory.length(request.seq)
        request.take(request.chooser.choose(logits, position, shortlist), logits)

    def _take_drafts(
        self,
        turn: Turn,
        chosen: Iterator[int] | None,
        logits: np.ndarray | None,
        hidden: np.ndarray | None,
    ) -> None:
        """chosen: what the device has; logits: where it has not."""
        request, taken, ended = turn.request, list[int](), True
        drafting, first = request.drafting, len(request.tokens)
        assert drafting is not None
        if chosen is not None:
            judged = drafting.judge_choices(turn.proposal, chosen)
        else:
            assert logits is not None
            judged = drafting.judge(turn.proposal, logits)
        for token in judged:
            request.take(token, None if logits is None else logits[len(taken)])
            taken.append(token)
            if request.ending:
                break
        else:
            ended = False
        if turn.drafted:
            request.note_drafts(first, taken, turn.drafted, turn.proposal.drafter_name)
        drafting.finish(turn.proposal, taken, ended, hidden)


def _entry(request: Request) -> Entry:
    return Entry(
        request.seq, request.token, request.chooser, request.left, request.options.draft_max
    )


def _draftings(turns: Sequence[Turn]) -> list[Drafting]:
    """The different ones."""
    return [drafting for drafting, _ in by_drafting([turn.request for turn in turns])]
