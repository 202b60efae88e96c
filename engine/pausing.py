"""Room for passes where sequences share fewer pages than all of them could fill.

A pass that finds no page free first takes those of texts that nobody is at work on, then does with
shorter drafts, and then pauses the youngest request: its sequence is emptied, and it goes to the
queue's front, to be evaluated again from its prompt and the tokens so far, but for what host
memory keeps of the prompt. So the oldest request always goes on, and nobody fails for want of pages
but one that does not fit alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from ..models.memories import PAGE
from .ahead import Ahead
from .memory import Reservation
from .parked import Parked, Source
from .request import Request, Stage
from .roster import Roster
from .sequences import Sequences


class Pausing:
    """Room for the passes of an engine's requests."""

    def __init__(
        self,
        sequences: Sequences,
        roster: Roster,
        parked: Parked,
        queue: deque[Request],
        ahead: Ahead,
    ) -> None:
        self.sequences, self._roster, self._queue, self._ahead = sequences, roster, queue, ahead
        self._parked = parked
        self._wants: dict[Request, int] = {}  # tokens of the pass that was made room for last
        self._paused: list[Request] = []
        # Who found no pages, and how many had left sequences then.
        self._waits: tuple[Request, int] | None = None

    def fit(self, wants: Mapping[Request, int]) -> list[Request]:
        """Those of these requests that there are pages for, with so many tokens each; the others
        are paused or have ended."""
        self._wants = dict(wants)
        few = max(wants.values(), default=0) <= 2
        if few and self.sequences.memory.surely_fits(len(wants)):
            return list(wants)
        while self._lacks(self._wants):
            if self._drop() or (not self._parked.copying and self._end_some()):
                continue
            if self._parked.copying:
                if self._put_off():
                    break
                continue
            active = self._roster.active
            if len(active) == 1:
                break  # what does not fit alone says so when it runs
            youngest = max(active, key=lambda request: request.number)
            self._pause(youngest)
            self._wants.pop(youngest, None)
        return list(self._wants)

    def _put_off(self) -> bool:
        """While pages are on their way to host memory: leave the pass to requests that have room,
        the oldest first; where there is none of those, and nobody else is to go on meanwhile, copy
        all of it. Whether the pass is settled."""
        wants = sorted(self._wants.items(), key=lambda found: found[0].number)
        self._wants = {}
        for request, n in wants:
            if not self._lacks({**self._wants, request: n}):
                self._wants[request] = n
        decoding = [r for r in self._roster.active if r.stage is Stage.DECODING]
        if self._wants or any(r not in dict(wants) for r in decoding):
            return True
        self._wants = dict(wants)
        self._parked.drop()
        return False

    def fits_drafts(self, wants: Mapping[Request, int]) -> bool:
        """Whether there are pages for so many tokens of some requests beside what `fit` made room
        for."""
        wants = {**self._wants, **wants}
        while self._lacks(wants):
            if not self._drop():
                return False
        return True

    def admit(self, begin: Callable[[Request, int], None]) -> None:
        """Give free sequences to those that wait longest, and let them begin, each with how many
        requests will run."""
        self._parked.begin_step()
        while self._queue:
            request = self._queue[0]
            if request.result is None:
                seq = self.place(request)
                if seq is None:
                    return
                request.changing = True
                request.seq = seq
                self._roster.active.append(request)
            self._queue.popleft()
            if request.result is None:
                waiting, active = len(self._queue), len(self._roster.active)
                begin(request, min(active + waiting, self.sequences.n_seqs))

    def place(self, request: Request) -> int | None:
        """The sequence for a request: a free one, once there are pages for its prompt and a step
        behind it. None: it has to wait."""
        roster, memory = self._roster, self.sequences.memory
        if not roster.free or self._waits == (request, roster.n_left):
            return None
        n_ctx = self.sequences.n_ctx
        seq, source = self._choose(request)
        lengths = {
            r.seq: min(roster.prompts[r].end + 1, n_ctx)
            for r in roster.active
            if r.stage is Stage.PROMPT
        }
        lengths[seq] = min(len(request.prompt) + len(request.tokens) + 1, n_ctx)
        # One that was paused would be again if the others' next pages were its own.
        more = len(roster.active) if request.timings.paused_n else 0
        more -= source.kept // PAGE if source.at != seq else 0
        while memory.growing(lengths, more):
            if self._drop(seq, source.at):
                continue
            if self._parked.copying:
                return None
            if roster.active:
                self._waits = request, roster.n_left
                return None
            break
        return seq

    def _choose(self, request: Request) -> tuple[int, Source]:
        """A free sequence, and what the prompt goes on from, there or elsewhere: the sequence that
        has most of it or, where others have more, the one unused for longest."""
        free, parked = self._roster.free, self._parked
        if not request.options.cache_prompt:
            return free[0], Source()
        best = parked.in_place(free, request.prompt)
        other = parked.elsewhere(best.at, request.prompt)
        if parked.from_host(request.prompt, max(best.kept, other.kept)):
            return free[0], Source()  # on pages of its own
        return (best.at, best) if best.kept >= other.kept else (free[0], other)

    def make_room(self, lengths: Mapping[int, int]) -> None:
        """Forget texts that nobody is at work on until idle sequences may grow to these lengths, as
        far as that helps."""
        while self.sequences.memory.growing(lengths) and self._drop(*lengths, bounded=False):
            pass

    def paused(self) -> list[Request]:
        """Those paused since the last call."""
        found, self._paused = self._paused, []
        return found

    def _lacks(self, wants: Mapping[Request, int]) -> int:
        """Pages that a pass would find missing."""
        sequences = self.sequences
        batch = [
            Reservation(r.seq, min(n, sequences.n_ctx - sequences.evaluated(r.seq)))
            for r, n in wants.items()
        ]
        return sequences.memory.lacking(batch)

    def _drop(self, *but: int, bounded: bool = True) -> bool:
        """Forget a text that nobody is at work on, the one unused for longest, and none of these;
        whether there was one. bounded: what decodes waits for a part of its copy only."""
        waits = any(request.stage is Stage.DECODING for request in self._roster.active)
        if self._parked.drop(but, bounded and waits):
            return True
        if self._parked.copying:
            return False
        for seq in self._roster.free:
            if seq not in but and self.sequences.holds(seq):
                self._parked.give_up(seq)
                return True
        return False

    def _end_some(self) -> bool:
        """Take the tokens of what was started, which those who are paused must have; whether that
        has ended requests."""
        self._ahead.drain()
        ending = [request for request in self._roster.active if request.ending]
        for request in ending:
            self._roster.end(request)
            self._wants.pop(request, None)
        return bool(ending)

    def _pause(self, request: Request) -> None:
        """Until `changing` is over, an exception leaves a request that is lost, and no other."""
        request.changing = True
        self._queue.appendleft(request)
        self._parked.give_up(request.seq)
        self._roster.pause(request)
        self._ahead.leave(request)
        request.changing = False
        self._paused.append(request)
