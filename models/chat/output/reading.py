"""Text that comes in pieces, read by generators that wait for more of it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

T = TypeVar("T")
# A reader of text: yields when it can go no further without more text, and returns what it read.
Waiting = Generator[None, None, T]
Give = Callable[[str], None]

SPACE = " \t\r\n"
# Before a marker. A model that writes white space without an end is not waited for.
_MOST_SPACE = 1000


class Reading:
    """A text of which more comes, and a place in it up to which it is read.

    ended: no more comes; then nothing waits."""

    def __init__(self) -> None:
        self.ended = False
        self._text, self._at = "", 0
        self._fed = 0
        self._held: int | None = None

    def feed(self, text: str) -> None:
        """Adds what came."""
        read = self._at if self._held is None else self._held
        self._text = self._text[read:] + text
        self._at -= read
        if self._held is not None:
            self._held = 0
        self._fed += len(text)

    def end(self) -> None:
        """Says that this was all."""
        self.ended = True

    @property
    def place(self) -> int:
        """How many characters are read."""
        return self._fed - len(self._text) + self._at

    @property
    def rest(self) -> str:
        """What has come and is not read."""
        return self._text[self._at :]

    def advance(self, n: int) -> str:
        """Read n characters of what has come, and return them."""
        start, self._at = self._at, min(self._at + n, len(self._text))
        return self._text[start : self._at]

    def hold(self) -> None:
        """Keep what is read from here on, so that `back` returns to here."""
        self._held = self._at

    def back(self) -> None:
        """Return to where `hold` was called."""
        if self._held is not None:
            self._at, self._held = self._held, None

    def release(self) -> None:
        """What `hold` keeps is not needed any more."""
        self._held = None

    def more(self) -> Waiting[bool]:
        """Wait for more text. False: the text has ended."""
        fed = self._fed
        while fed == self._fed:
            if self.ended:
                return False
            yield
        return True

    def peek(self, n: int = 1) -> Waiting[str]:
        """The next n characters, fewer where the text ends before."""
        while len(self._text) - self._at < n and (yield from self.more()):
            pass
        return self._text[self._at : self._at + n]

    def skip_space(self) -> Waiting[str]:
        """Read white space. Returns it."""
        found = ""
        while True:
            rest = self.rest
            found += self.advance(len(rest) - len(rest.lstrip(SPACE)))
            if self._at < len(self._text) or not (yield from self.more()):
                return found

    def until(self, markers: Iterable[str], give: Give) -> Waiting[str | None]:
        """Give what comes before the first of some markers, and read the marker.

        Returns the marker, or None at the end of a text without one, all of which was given. What
        may turn out to be a marker is withheld, no more."""
        markers = tuple(markers)
        firsts = {marker[0] for marker in markers}
        while True:
            if firsts.isdisjoint(self.rest):
                _give_some(give, self.advance(len(self._text)))
                if not (yield from self.more()):
                    return None
                continue
            found = [(i, -len(m), m) for m in markers if (i := self._text.find(m, self._at)) >= 0]
            if found:
                place, _, marker = min(found)
                _give_some(give, self.advance(place - self._at))
                self.advance(len(marker))
                return marker
            ready = len(self._text) - self._at - begun(self.rest, markers)
            _give_some(give, self.advance(ready))
            if not (yield from self.more()):
                _give_some(give, self.advance(len(self._text)))
                return None

    def comes(self, *texts: str, space: bool = False) -> Waiting[str | None]:
        """The first of some texts that comes next, None for none of them; it is not read.

        space: white space may come before it, up to 1000 characters."""
        while True:
            rest = self.rest
            if space:
                bare = rest.lstrip(SPACE)
                if len(rest) - len(bare) > _MOST_SPACE:
                    return None
                rest = bare
            found = next((text for text in texts if rest.startswith(text)), None)
            may_come = any(text.startswith(rest) for text in texts)
            if found is not None or not may_come or not (yield from self.more()):
                return found

    def take(self, *texts: str, space: bool = False) -> Waiting[str | None]:
        """As `comes`, and reads it, with the white space before it."""
        found = yield from self.comes(*texts, space=space)
        if found is not None:
            rest = self.rest
            blank = len(rest) - len(rest.lstrip(SPACE)) if space else 0
            self.advance(blank + len(found))
        return found

    def is_cut(self, *markers: str) -> bool:
        """Whether the text has ended, with nothing left but white space and the beginning of one of
        some markers."""
        left = self.rest.lstrip(SPACE)
        return self.ended and any(marker.startswith(left) for marker in markers)


def begun(text: str, markers: Iterable[str]) -> int:
    """How many characters at the end of a text may be the beginning of a marker."""
    longest = 0
    for marker in markers:
        for n in range(min(len(marker) - 1, len(text)), longest, -1):
            if text.endswith(marker[:n]):
                longest = n
                break
    return longest


def gathered(read: Callable[[Give], Waiting[T]]) -> Waiting[tuple[str, T]]:
    """What a reader gives as one text, and what it returns."""
    pieces: list[str] = []
    found = yield from read(pieces.append)
    return "".join(pieces), found


def _give_some(give: Give, text: str) -> None:
    if text:
        give(text)
