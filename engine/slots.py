"""Sequences of an engine, saved and restored between its steps."""

from __future__ import annotations

from ..graph.errors import RequestError
from .items import checked_integer
from .parked import Parked
from .pausing import Pausing
from .roster import Roster
from .sequences import Sequences


class Slots:
    """What an engine's sequences hold while no request has them."""

    def __init__(
        self, sequences: Sequences, roster: Roster, parked: Parked, pausing: Pausing
    ) -> None:
        self.sequences, self._roster = sequences, roster
        self._parked, self._pausing = parked, pausing

    def save(self, seq: int) -> bytes:
        """What a sequence holds, as `Session.save` gives it."""
        return self.sequences.save(self._idle(seq))

    def restore(self, seq: int, data: bytes) -> int:
        """Bring it back, in place of what the sequence holds, which is parked; its tokens. Pages
        are taken from texts that nobody is at work on."""
        seq, sequences = self._idle(seq), self.sequences
        length = len(sequences.saved_tokens(data))
        self._parked.empty(seq)
        self._pausing.make_room({seq: length})
        sequences.restore(data, seq)
        # So that it can be parked, and shared: nothing else holds the state at its end.
        sequences.storage.remember(seq)
        return length

    def erase(self, seq: int) -> int:
        """Forget what a sequence holds; how many tokens that were."""
        seq = self._idle(seq)
        n = 0 if self.sequences.is_lost(seq) else self.sequences.length(seq)
        self.sequences.clear(seq)
        return n

    def _idle(self, seq: int) -> int:
        number, n = checked_integer(seq, "a sequence"), self.sequences.n_seqs
        if not 0 <= number < n:
            raise RequestError(f"sequences are from 0 to {n - 1}, got {number}")
        if number not in self._roster.free:
            raise RequestError(f"sequence {number} belongs to a request; wait for its end")
        return number
