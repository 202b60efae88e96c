"""The requests that have sequences of a session, and how they leave them."""

from __future__ import annotations

from ..graph.errors import SequenceLost
from .prompts import Prompt
from .request import Request, Stage
from .sequences import Sequences


class Roster:
    """active: requests that have a sequence, each its own; prompts: those of active ones; ended:
    requests whose end was not reported yet; free: sequences without a request, the one unused for
    longest first; n_left: how often a request has left one."""

    def __init__(self, sequences: Sequences, n: int) -> None:
        """n: how many sequences may be used, from 0 on."""
        self.sequences = sequences
        self.active: list[Request] = []
        self.prompts: dict[Request, Prompt] = {}
        self.ended: list[Request] = []
        self.n_left = 0
        self._by_age = list(range(n))

    @property
    def prompting(self) -> list[Request]:
        """Active requests whose prompts are on their way."""
        return [request for request in self.active if request.stage is Stage.PROMPT]

    @property
    def decoding(self) -> list[Request]:
        """Active requests that decode."""
        return [request for request in self.active if request.stage is Stage.DECODING]

    @property
    def joining(self) -> bool:
        """Whether the next pass of some prompt is its last one."""
        return any(self.prompts[request].last for request in self.prompting)

    @property
    def free(self) -> list[int]:
        """Sequences that no request has."""
        used = {request.seq for request in self.active}
        return [seq for seq in self._by_age if seq not in used]

    def end(self, request: Request, reason: str = "") -> None:
        """Make its result; its sequence goes on to hold prompt and generated tokens. What an
        exception has broken off is completed by another call."""
        if request.result is None:
            request.changing = True
            request.end(reason)
            request.changing = False
        if request in self.active:
            self._leave(request)
        if request not in self.ended:
            self.ended.append(request)

    def _leave(self, request: Request) -> None:
        seq = request.seq
        if not self.sequences.is_lost(seq):
            self.sequences.drop_pending(seq)
            self._append_rest(request)
        self._by_age = [*(s for s in self._by_age if s != seq), seq]
        self.prompts.pop(request, None)
        self.active.remove(request)
        self.n_left += 1

    def _append_rest(self, request: Request) -> None:
        """The newest token has not been evaluated; it belongs to the text all the same, unless the
        context ends in front of it, or its prompt is still on its way once more."""
        missing = request.length - self.sequences.length(request.seq)
        if 0 < missing <= len(request.tokens) and request.length <= self.sequences.n_ctx:
            self.sequences.append(request.seq, request.tokens[-missing:])

    def pause(self, request: Request) -> None:
        """Take its sequence from a request, which is then empty and the first to be used."""
        request.pause()
        seq = request.seq
        self.sequences.clear(seq)
        self._by_age = [seq, *(s for s in self._by_age if s != seq)]
        self.prompts.pop(request, None)
        self.active.remove(request)
        request.seq = -1
        self.n_left += 1

    def fail(self, request: Request, error: BaseException) -> None:
        """End a request that cannot go on."""
        request.fail(error)
        self.end(request)

    def recover(self) -> None:
        """After an exception in the middle of a step: requests go on whose sequence and tokens
        agree, the others end."""
        for request in list(self.active):
            if request.result is not None:
                self.end(request)
                continue
            if request.changing or self.sequences.is_lost(request.seq):
                lost = SequenceLost("the request was lost when a step was interrupted; ask again")
                self.fail(request, lost)
                continue
            self.sequences.drop_pending(request.seq)
            if request.stage is not Stage.DECODING:
                continue
            # A pass may have evaluated the newest token without giving it a next one.
            self.sequences.shorten(request.seq, request.evaluated)
            if request.drafting is not None:
                held = self.sequences.tokens(request.seq)
                request.drafting.begin(request.seq, held, len(held))
