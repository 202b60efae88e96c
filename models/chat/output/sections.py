"""Calls in a section of an answer, each between control tokens: a name, a separator, arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .json_reading import read_arguments
from .parser import MarkedParser, Think, Tools
from .reading import Waiting
from .rules import GAP, Calls, Rules

_LONGEST_NAME = 200  # characters, with what stands around a name
_FENCE = "```"


@dataclass(frozen=True)
class Marks:
    """The tokens of a section: `begin (call NAME separator ARGUMENTS call_end)* end`."""

    begin: str
    call: str
    separator: str
    call_end: str
    end: str

    @property
    def all(self) -> tuple[str, ...]:
        """All of them."""
        return (self.begin, self.call, self.separator, self.call_end, self.end)

    def calls(self, rules: Rules, bodies: Sequence[str], parallel: bool) -> Calls:
        """The rules of a section. bodies: alternatives of what stands in a call."""
        call = f"{rules.literal(self.call)} {rules.rule(' | '.join(bodies))}"
        one = rules.rule(f"{call} {rules.literal(self.call_end)}")
        more = f" ({GAP} {one})*" if parallel else ""
        return Calls(self.begin, rules.rule(f"{one}{more} {rules.literal(self.end)}"))


class SectionParser(MarkedParser):
    """Reads the calls of sections. Tokens of an end may be missing, and those around a section."""

    def __init__(
        self, marks: Marks, think: Think | None, tools: Tools, prompt_tail: str, reasoning: bool
    ) -> None:
        """think, prompt_tail, reasoning: as for `MarkedParser`."""
        begins = (marks.begin, marks.call) if tools else ()
        super().__init__(begins, think=think, prompt_tail=prompt_tail, reasoning=reasoning)
        self.marks = marks

    def name(self) -> Waiting[str | None]:
        """Reads what stands before the arguments. Returns the function's name, None where there is
        none."""
        return (yield from self.up_to(self.marks.separator))

    def call(self, marker: str) -> Waiting[bool]:
        """See `MarkedParser.call`."""
        text, marks, found = self.text, self.marks, False
        begun = marker == marks.call
        while begun or (yield from text.take(marks.call, space=True)):
            if not (yield from self._one()):
                text.back()
                return found
            begun, found = False, True
            text.hold()
        yield from text.take(marks.end, space=True)
        return found

    def up_to(self, *markers: str) -> Waiting[str | None]:
        """Reads a name and the marker behind it, None for what is too long or empty."""
        text, found = self.text, ""
        while len(found) < _LONGEST_NAME and (yield from text.peek()):
            if (yield from text.take(*markers)):
                return found.strip() or None
            if (yield from text.comes(*self.marks.all)):
                return None
            found += text.advance(1)
        return None

    def _one(self) -> Waiting[bool]:
        text, marks = self.text, self.marks
        stops: Sequence[str] = (marks.call_end, marks.end)
        name = yield from self.name()
        if name is None:
            return False
        text.release()
        self.start_call(name)
        fenced = yield from text.take(_FENCE, space=True)
        if fenced:
            yield from text.take("json")
        whole = yield from read_arguments(text, self.arguments, stops)
        if fenced:
            yield from text.take(_FENCE, space=True)
        if whole or (yield from text.comes(marks.call_end, space=True)):
            self.end_call()
        yield from text.take(marks.call_end, space=True)
        return True
