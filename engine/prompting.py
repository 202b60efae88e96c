"""Prompts of requests: how they get into sequences, pass by pass, and what they end with."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from ..graph.errors import RiverrunError
from .ahead import Ahead
from .buckets import MAX_TOKENS
from .companions import Companions
from .drafting import Drafting, Opener
from .draws import KINDS
from .parked import Parked
from .portions import Portions
from .prompts import Prompt
from .request import Request, Stage
from .roster import Roster
from .rounds import Rounds
from .rows import Pass
from .sequences import Sequences


class Prompting:
    """The prompts of an engine's requests, of those too that go on after a pause."""

    def __init__(
        self,
        sequences: Sequences,
        roster: Roster,
        parked: Parked,
        ahead: Ahead,
        rounds: Rounds,
        continues: bool,
    ) -> None:
        """continues: prompts follow what their sequence holds, unless it is to be reused."""
        self.sequences, self._roster, self._ahead, self._rounds = sequences, roster, ahead, rounds
        self._parked, self._continues = parked, continues
        self._companions, self._portions = Companions(), Portions()
        self._drafting: dict[Any, Drafting] = {}

    def prepare(self, opener: Opener | Drafting | None) -> bool:
        """Compile what decoding any number of requests with these drafters runs; whether they want
        hidden rows."""
        drafting = self.open(opener)
        self._ahead.prepare_all(drafting is not None and drafting.hidden)
        if drafting is None:
            self._rounds.prepare_all()
            return False
        drafting.prepare((None, *KINDS) if self._ahead.able else (None,))
        return drafting.hidden

    def begin(self, request: Request, company: int) -> None:
        """Bring its sequence to where the prompt goes on. company: requests that will run, it and
        those that begin with it included."""
        request.stage = Stage.PROMPT
        try:
            self._begin(request, company)
        except Exception as error:
            self._roster.fail(request, error)
        request.changing = False

    def _begin(self, request: Request, company: int) -> None:
        sequences, seq = self.sequences, request.seq
        kept, note = 0, ""
        if request.options.cache_prompt:
            own = self._continues  # what other sequences of the caller's hold is not for it
            found = sequences.go_back if own else self._parked.open
            kept, note = found(request.prompt, seq)
        elif not self._continues:
            self._parked.empty(seq)
        drafting = request.drafting = self.open(request.opener)
        hidden = drafting is not None and drafting.reads(company)
        rest, behind = request.prompt[kept:], request.tokens[:-1]
        work = self._roster.prompts[request] = Prompt(sequences, seq, rest, hidden, behind)
        if drafting is not None:
            text = [*sequences.tokens(seq), *rest, *behind]
            drafting.begin(seq, text, sequences.evaluated(seq))
        request.on_device = self._ahead.prepare(request)
        self._rounds.prepare(request)
        sequences.prepare(len(work.tokens), seq, hidden)
        request.began_prompt(kept, note)

    def choose(self, requests: Sequence[Request], decoding: bool = False) -> dict[Request, int]:
        """Whose prompts get the next pass, and how many tokens of each: first the one with the
        fewest passes left, so that short ones do not wait for long ones. Each pass that others have
        got counts as one less, so that those who come later do not keep a long one waiting for more
        passes than it has left. Others go along as far as a pass holds them and is the faster for
        it. decoding: requests that decode wait for the pass, which is a short one then."""
        works = {request: self._roster.prompts[request] for request in requests}
        most = self.sequences.storage.chunk
        if decoding:
            on_host = self.sequences.model.backend.on_host
            most = min(most, self._portions.tokens() if on_host else MAX_TOKENS)
        for work in works.values():
            work.most = most
        first, *others = sorted(requests, key=lambda r: (works[r].urgency, r.number))
        chosen = {first: works[first].size}
        if self.sequences.storage.joins_prompts and works[first].part:
            kind = works[first].kind
            for request in others:
                work = works[request]
                fits = sum(chosen.values()) + work.size <= most
                if fits and work.part and (work.kind, work.hidden) == (kind, works[first].hidden):
                    chosen[request] = work.size
        for request, work in works.items():
            work.waited = 0 if request in chosen else work.waited + 1
        return chosen

    def has_turn(
        self, prompts: Sequence[Request], decoding: Sequence[Request], decoded: bool
    ) -> bool:
        """Whether the next pass is one over these prompts. decoding: requests that decode, which
        had the pass before if decoded."""
        if not decoding:
            return True
        waits = self._has_room(prompts) and self._companions.worth_waiting(decoding)
        return decoded and not waits

    def patience(self, queue: Iterable[Request]) -> float:
        """Seconds for which another request should be waited for before the pass over the prompts
        of those who have begun and of those who wait, 0.0 for none."""
        if self._roster.decoding:
            return 0.0
        waits = self._has_room([*self._roster.prompting, *queue])
        return self._companions.gap if waits and self._companions.worth_waiting(()) else 0.0

    def note_decoding(self, seconds: float) -> None:
        """A pass of those that decode took so long."""
        self._portions.note_decoding(seconds)

    def came(self) -> None:
        """A request was submitted. From any thread."""
        self._companions.came()

    def ended(self, requests: Sequence[Request]) -> None:
        """These have ended."""
        self._companions.ended(sum(not (r.cancelled or r.error) for r in requests))

    def _has_room(self, requests: Sequence[Request]) -> bool:
        """Whether the first pass of some requests would be the better for another prompt."""
        tokens = sum(len(request.prompt) for request in requests)
        return self.sequences.storage.joins_prompts and 0 < tokens < MAX_TOKENS

    def run(self, requests: Sequence[Request]) -> None:
        """A pass of their prompts, and after the last one their first tokens. Where a pass of
        several fails, each runs alone, so that only those fail that cannot go on."""
        self._ahead.disturb()
        began, rows = time.perf_counter(), sum(self._roster.prompts[r].size for r in requests)
        if len(requests) < 2 or not self._run_together(requests):
            for request in requests:
                self._guarded(request, partial(self._pass, request, self._roster.prompts[request]))
        took = time.perf_counter() - began
        self._companions.note_pass(rows, took)
        self._portions.note_prompts(rows, took)
        for request in requests:
            if request.ending:
                self._roster.end(request)

    def _guarded(self, request: Request, change: Callable[[], None]) -> None:
        """What changes a request, which fails with it."""
        # Tokens that were chosen before a pause agree with any part of their text.
        request.changing = self._roster.prompts[request].last and not request.tokens
        try:
            change()
        except Exception as error:
            request.fail(error)
        request.changing = False

    def _run_together(self, requests: Sequence[Request]) -> bool:
        """One pass for all; False, with all as they were, where it fails."""
        works = [self._roster.prompts[request] for request in requests]
        parts = [work.part for work in works]
        items = [(work.seq, part) for work, part in zip(works, parts, strict=True)]
        kind, hidden = works[0].kind, works[0].hidden
        for request, work in zip(requests, works, strict=True):
            request.changing = work.last and not request.tokens
        try:
            found = self.sequences.evaluate(items, hidden=hidden, kind=kind)
        except RiverrunError as error:
            message = f"a pass over {len(items)} prompts failed, so each has its own: {error}"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
            return False
        at = 0
        for i, (request, part) in enumerate(zip(requests, parts, strict=True)):
            rows = None if found.hidden is None else found.hidden[at : at + len(part)]
            mine, at = Pass(found.logits[i : i + 1], rows), at + len(part)
            self._guarded(request, partial(self._passed, request, part, mine))
        return True

    def _pass(self, request: Request, work: Prompt) -> None:
        if request.tokens and work.done:
            request.resume()  # a step was interrupted behind the last pass
            return
        part, found = work.step()
        self._evaluated(request, work, part, found)

    def _passed(self, request: Request, part: Sequence[int], found: Pass) -> None:
        """Behind a pass of several."""
        work = self._roster.prompts[request]
        work.keep()
        self._evaluated(request, work, part, found)

    def _evaluated(self, request: Request, work: Prompt, part: Sequence[int], found: Pass) -> None:
        """Behind a pass over a part of its prompt."""
        if request.drafting is not None:
            request.drafting.watch(request.seq, part, found.hidden)
        if not work.done:
            return
        if request.tokens:
            request.resume()
            return
        length = self.sequences.evaluated(request.seq)
        request.began_decoding(length, self.sequences.n_ctx - length)
        if not request.ending:
            request.take(request.chooser.choose(found.logits[0], length), found.logits[0])

    def open(self, opener: Opener | Drafting | None) -> Drafting | None:
        """The drafters that were asked for, opened once."""
        if opener is None:
            return None
        # Before the protocol, whose check asks for every attribute.
        found = self._drafting.get(opener)
        if found is not None:
            return found
        if not isinstance(opener, Opener):
            return opener
        found = self._drafting[opener] = opener.open(self.sequences)
        return found

    def close(self) -> None:
        """Let drafters write what they keep."""
        while self._drafting:
            self._drafting.popitem()[1].close()
