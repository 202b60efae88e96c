"""What readers of answers share: what is new, white space, reasoning, and calls behind markers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .deltas import CallArguments, CallEnd, CallStart, Content, Delta, Reasoning
from .reading import SPACE, Reading, Waiting

Tools = Sequence[dict[str, Any]] | None


@dataclass(frozen=True)
class Think:
    """The tags around reasoning."""

    open: str = "<think>"
    close: str = "</think>"

    def is_open(self, prompt_tail: str) -> bool:
        """Whether a prompt ends inside reasoning, as its template began it or as a message that
        is continued has it. A tag that a message names does not count: its turn has ended."""
        _, tag, inside = prompt_tail.rpartition(self.open)
        return bool(tag) and self.close not in inside and not _TURN.search(inside)


# What ends turns in the forms that are in use.
_TURN = re.compile(r"<[|｜]|[|｜]>|</?s>|\[/?[A-Z_]+\]|<\w+_of_turn>|<turn\|?>")

THINK = Think()


class OutputParser:
    """Reads one answer: `feed` each piece of its text, then `finish`; each returns what is new.

    A family's parser has the method `read`, a generator that reads `text` and tells what it finds
    by `content`, `reasoning`, `start_call`, `arguments` and `end_call`. What it leaves is content.
    No text makes a parser raise.

    n_calls: tool calls that have begun."""

    def __init__(self, trims: bool = False) -> None:
        """trims: calls may come, so that white space at an end of content is withheld, and dropped
        if a call follows."""
        self.text = Reading()
        self.n_calls = 0
        self._trims = trims
        self._out: list[Delta] = []
        self._running = self._whole()
        self._kind: type[Content] | type[Reasoning] = Content
        # White space that is withheld, as it came, and its place; None: it is not of the answer.
        self._space: list[str] = []
        self._space_at: int | None = None
        # Whether a part of the answer has just begun, and whether the last call has arguments.
        self._fresh = self._in_call = self._has_arguments = False

    def feed(self, text: str) -> list[Delta]:
        """Go on by a piece of the text."""
        self.text.feed(text)
        return self._go_on()

    def finish(self) -> list[Delta]:
        """The text has ended: what was withheld. What looked like the beginning of a call and is
        none becomes content; a call that was cut keeps what it gave."""
        self.text.end()
        return self._go_on()

    def read(self) -> Waiting[None]:
        """Reads an answer."""
        yield from ()

    def content(self, text: str) -> None:
        """Text for the reader."""
        self._say(Content, text, self._trims)

    def reasoning(self, text: str) -> None:
        """A piece of reasoning."""
        self._say(Reasoning, text, True)

    def part(self) -> None:
        """Another part of the answer begins, such as what comes after the reasoning: white space
        around this place is dropped."""
        self._space, self._space_at, self._fresh = [], None, True

    def start_call(self, name: str, id: str = "") -> None:
        """A call begins. id: of `CallStart`."""
        self.part()
        self._in_call, self._has_arguments = True, False
        self._out.append(CallStart(self.n_calls, name, id))
        self.n_calls += 1

    def arguments(self, text: str) -> None:
        """A fragment of the arguments of the call that has begun last."""
        if text:
            self._has_arguments = True
            self._out.append(CallArguments(self.n_calls - 1, text))

    def end_call(self) -> None:
        """The call that has begun is whole; without any arguments they are {}. Without such a call
        nothing happens."""
        if self._in_call and not self._has_arguments:
            self.arguments("{}")
        if self._in_call:
            self._out.append(CallEnd(self.n_calls - 1))
        self._in_call = False

    def _say(self, kind: type[Content] | type[Reasoning], text: str, trim: bool) -> None:
        if self._fresh:
            text = text.lstrip(SPACE)
        if not text:
            return
        self._fresh, self._kind = False, kind
        bare = text.rstrip(SPACE) if trim else text
        begin = self.text.place - len(text)
        end = begin + len(bare)
        if bare:
            first = begin if self._space_at is None else self._space_at
            self._out.append(kind("".join((*self._space, bare)), (first, end)))
            self._space, self._space_at = [], None
        if len(bare) < len(text):
            if not self._space:
                self._space_at = end
            self._space.append(text[len(bare) :])

    def _whole(self) -> Waiting[None]:
        yield from self.read()
        yield from self.text.until((), self.content)
        if self._space:
            left = "".join(self._space)
            first = self.text.place if self._space_at is None else self._space_at
            self._out.append(self._kind(left, (first, first + len(left))))

    def _go_on(self) -> list[Delta]:
        next(self._running, None)
        found, self._out = self._out, []
        return found


class MarkedParser(OutputParser):
    """Reads reasoning, where there is some, and then text and calls that begin with a marker.

    A family gives `call`. Reasoning is told by its tags, and only at the beginning of an answer."""

    def __init__(
        self,
        markers: Sequence[str],
        *,
        think: Think | None = None,
        prompt_tail: str = "",
        reasoning: bool = True,
    ) -> None:
        """markers: what begins a call, none where calls are text. think: the tags of reasoning,
        None for a family without. prompt_tail, reasoning: as for `OutputFormat.parser`."""
        super().__init__(bool(markers))
        self._markers = tuple(markers)
        self._missing: tuple[str, ...] = ()
        self._think, self._split = think, reasoning
        self._open = think is not None and think.is_open(prompt_tail)

    def call(self, marker: str) -> Waiting[bool]:
        """Reads a call, or several, after its marker, with the marker of its end.

        Returns whether it was a call. False, before anything was given: it is text."""
        yield from ()
        return False

    def end_marker(self, marker: str) -> Waiting[None]:
        """Reads the marker of a call's end. Where it does not come next the answer goes on behind
        the call, and the marker is dropped where it comes before another call; so is one that the
        end of the text cuts."""
        if (yield from self.text.take(marker, space=True)):
            self.end_call()
        elif self.text.is_cut(marker):
            self.text.advance(len(self.text.rest))
        else:
            self._missing = (marker,)

    def read(self) -> Waiting[None]:
        """Reads an answer."""
        yield from self.thoughts()
        text = self.text
        while marker := (yield from text.until(self._markers + self._missing, self.content)):
            missing, self._missing = self._missing, ()
            text.hold()
            if marker in missing or (yield from self.call(marker)):
                text.release()
                self.part()
                if (yield from text.peek()):
                    self.end_call()
            else:
                text.back()
                self._missing = missing
                self.content(marker)

    def thoughts(self) -> Waiting[None]:
        """Reads the reasoning at the beginning."""
        think, text = self._think, self.text
        if think is None:
            return
        if not self._split:
            if self._open or (yield from text.take(think.open, space=True)):
                self.content("" if self._open else think.open)
                if (yield from text.until((think.close,), self.content)):
                    self.content(think.close)
            return
        tag = yield from text.take(think.open, space=True)
        if tag or self._open:
            self.part()
            yield from text.until((think.close,), self.reasoning)
            self.part()
