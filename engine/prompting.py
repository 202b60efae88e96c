"""Prompts of requests: how they get into sequences, pass by pass, and what they end with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .ahead import Ahead
from .drafting import Drafting, Opener
from .parked import Parked
from .prompts import Prompt
from .request import Request, Stage
from .roster import Roster
from .rounds import Rounds
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
        self._drafting: dict[Any, Drafting] = {}

    def begin(self, request: Request) -> None:
        """Bring its sequence to where the prompt goes on."""
        request.stage = Stage.PROMPT
        try:
            self._begin(request)
        except Exception as error:
            self._roster.fail(request, error)
        request.changing = False

    def _begin(self, request: Request) -> None:
        sequences, seq = self.sequences, request.seq
        kept, note = 0, ""
        if request.options.cache_prompt:
            own = self._continues  # what other sequences of the caller's hold is not for it
            found = sequences.go_back if own else self._parked.open
            kept, note = found(request.prompt, seq)
        elif not self._continues:
            self._parked.empty(seq)
        drafting = request.drafting = self.open(request.opener)
        hidden = drafting is not None and drafting.hidden
        rest, behind = request.prompt[kept:], request.tokens[:-1]
        work = self._roster.prompts[request] = Prompt(sequences, seq, rest, hidden, behind)
        if drafting is not None:
            text = [*sequences.tokens(seq), *rest, *behind]
            drafting.begin(seq, text, sequences.evaluated(seq))
        request.on_device = self._ahead.prepare(request)
        if not request.on_device:
            self._rounds.prepare(request)
        sequences.prepare(len(work.tokens), seq, hidden)
        request.began_prompt(kept, note)

    def choose(self, requests: Sequence[Request]) -> Request:
        """Whose prompt gets the next pass: the one with the fewest passes left, so that short ones
        do not wait for long ones. Each pass that another has got counts as one less, so that those
        who come later do not keep a long one waiting for more passes than it has left."""
        works = [(self._roster.prompts[request], request) for request in requests]
        work, chosen = min(works, key=lambda found: (found[0].urgency, found[1].number))
        for other, _ in works:
            other.waited += 1
        work.waited = 0
        return chosen

    def run(self, request: Request) -> None:
        """A pass of its prompt, and after the last one its first token."""
        work = self._roster.prompts[request]
        self._ahead.disturb()
        # Tokens that were chosen before a pause agree with any part of their text.
        request.changing = work.last and not request.tokens
        try:
            self._pass(request, work)
        except Exception as error:
            request.fail(error)
        request.changing = False
        if request.ending:
            self._roster.end(request)

    def _pass(self, request: Request, work: Prompt) -> None:
        if request.tokens and work.done:
            request.resume()  # a step was interrupted behind the last pass
            return
        part, found = work.step()
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
        if opener is None or not isinstance(opener, Opener):
            return opener
        if opener not in self._drafting:
            self._drafting[opener] = opener.open(self.sequences)
        return self._drafting[opener]

    def close(self) -> None:
        """Let drafters write what they keep."""
        while self._drafting:
            self._drafting.popitem()[1].close()
