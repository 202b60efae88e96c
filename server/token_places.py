"""Which of a request's tokens a part of its answer was read from."""

from __future__ import annotations

from ..engine.request import Request
from ..models.chat.output import Content, Delta, Reasoning


class TokenPlaces:
    """Of deltas in their order. Where several tokens make one character they count as one, and a
    token of which two deltas have characters belongs to the first."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._piece = self._begin = 0  # the piece of text that is looked at, its first character
        self._given = 0  # tokens that were given, or are of no delta

    def tokens(self, delta: Delta) -> tuple[int, int]:
        """The places of the first token and of the one behind the last, the same for none."""
        place = delta.place if isinstance(delta, Content | Reasoning) else None
        if place is None or place[0] == place[1]:
            return self._given, self._given
        request, (first, end) = self._request, place
        while (behind := self._begin + len(request.piece(self._piece))) <= first:
            self._piece, self._begin = self._piece + 1, behind
        before = request.piece_end(self._piece - 1) if self._piece else 0
        while (behind := self._begin + len(request.piece(self._piece))) < end:
            self._piece, self._begin = self._piece + 1, behind
        found = max(before, self._given), request.piece_end(self._piece)
        self._given = found[1]
        return found
