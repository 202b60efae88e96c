"""Stop strings over a stream of text pieces."""

from __future__ import annotations

from collections.abc import Sequence

from ..graph.errors import RequestError


class StopMatcher:
    """Cuts a stream at the first stop string, however the text is split into pieces.

    The match that starts earliest in the whole text wins, and everything from its start on is
    dropped. Text that may yet turn out to be part of a stop is withheld, never more than one
    character less than the longest stop, and released once it cannot be. So while a stop inside a
    longer possible one is complete, the longer one is waited for: with "abcd" and "bc", "abc"
    gives nothing yet, then "" and a stop if "d" follows, "a" and a stop if anything else does. Of
    stops that start together the shortest is the match: it is complete first, and what is emitted
    is the same.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises RequestError for an empty stop, or stops that are not a list of strings."""
        if isinstance(stops, str):
            raise RequestError(f"stop: expected a list of strings, got the string {stops!r}")
        for stop in stops:
            if not isinstance(stop, str) or not stop:
                raise RequestError(f"stop: expected strings that are not empty, got {stop!r}")
        self._stops = tuple(sorted(set(stops), key=lambda stop: (len(stop), stop)))
        self._held = ""
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop that ended the stream, None while there is none."""
        return self._matched

    def feed(self, text: str) -> tuple[str, bool]:
        """Takes the next piece; gives the text that is safe to emit, and whether to stop.

        After a stop every further piece gives ("", True)."""
        if self._matched is not None:
            return "", True
        text = self._held + text
        start, stop = self._first_match(text)
        keep = self._first_partial(text, start)
        if keep < start:
            self._held = text[keep:]
            return text[:keep], False
        self._held, self._matched = "", stop
        return text[:start], stop is not None

    def finish(self) -> str:
        """The text still withheld, to be emitted when the stream ends.

        A stop that was complete and only waited for a longer one counts now: the text before it
        is given, and `matched` is set."""
        if self._matched is not None:
            return ""
        text, self._held = self._held, ""
        start, self._matched = self._first_match(text)
        return text[:start]

    def _first_match(self, text: str) -> tuple[int, str | None]:
        """Where the earliest complete stop starts, and it; the text's length and None if none."""
        best: tuple[int, str | None] = (len(text), None)
        for stop in self._stops:
            start = text.find(stop, 0, best[0] + len(stop) - 1)
            if start >= 0:
                best = (start, stop)
        return best

    def _first_partial(self, text: str, end: int) -> int:
        """Where before `end` the earliest proper beginning of a stop that ends the text starts."""
        first = end
        for stop in self._stops:
            start = max(0, len(text) - len(stop) + 1)
            while (start := text.find(stop[0], start, first)) >= 0:
                if stop.startswith(text[start:]):
                    first = start
                    break
                start += 1
        return first
