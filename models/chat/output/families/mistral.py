"""Calls of Mistral's models: behind [TOOL_CALLS] a list of objects, or a name and arguments."""

from __future__ import annotations

import re
import secrets
import string

from ..formats import OutputFormat, register
from ..json_reading import read_arguments, read_call
from ..parser import MarkedParser, Think, Tools
from ..reading import Waiting
from ..rules import GAP, Calls, Functions, Rules, call_objects, several

BEGIN, ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
THINK = Think("[THINK]", "[/THINK]")
# Templates refuse chats with calls that have other ids.
_ID = re.compile(r"[a-zA-Z0-9]{9}")
_LONGEST_NAME = 200  # characters


class _Mistral(OutputFormat):
    """What both forms share: answers in either are read."""

    visible = (BEGIN, ID, ARGS, THINK.open, THINK.close)
    think = THINK
    precedence = 1

    def parser(
        self, *, tools: Tools, prompt_tail: str = "", reasoning: bool = True
    ) -> MistralParser:
        """See `OutputFormat.parser`."""
        markers = (BEGIN,) if tools else ()
        return MistralParser(
            markers, think=self.think, prompt_tail=prompt_tail, reasoning=reasoning
        )


@register
class MistralList(_Mistral):
    """`[TOOL_CALLS][{"name": NAME, "arguments": {...}, "id": ID}, ...]`; the id may be missing.

    Source: the chat templates of Mistral 7B v0.3 and Mistral Nemo."""

    name = "mistral-list"

    def detects(self, template: str) -> bool:
        """Templates that write such lists."""
        return BEGIN in template and ARGS not in template

    def calls(self, rules: Rules, functions: Functions, parallel: bool) -> Calls:
        """See `OutputFormat.calls`."""
        call = rules.rule(
            call_objects(rules, functions, more=f'(", \\"id\\": \\"" /{_ID.pattern}/ "\\"")?')
        )
        more = f' ("," {GAP} {call})*' if parallel else ""
        return Calls(BEGIN, rules.rule(f'{GAP} "[" {call}{more} "]"'))


@register
class Mistral(_Mistral):
    """`[TOOL_CALLS]NAME[ARGS]{...}` for each call, with `[CALL_ID]` and an id behind the name or
    not.

    Source: the chat templates of Mistral Small 3.2, Devstral and Ministral 3."""

    name = "mistral"

    def detects(self, template: str) -> bool:
        """Templates that write calls so."""
        return BEGIN in template and ARGS in template

    def calls(self, rules: Rules, functions: Functions, parallel: bool) -> Calls:
        """See `OutputFormat.calls`."""
        behind = rules.rule(f"({rules.literal(ID)} /{_ID.pattern}/)? {rules.literal(ARGS)}")
        calls = [f"{rules.literal(n)} {behind} {rules.json(schema)}" for n, schema in functions]
        return several(rules, BEGIN, " | ".join(map(rules.rule, calls)), parallel)


class MistralParser(MarkedParser):
    """Reads the calls. The marker before arguments may be missing. Calls without an id that
    templates take get one."""

    def start_call(self, name: str, id: str = "") -> None:
        """See `OutputParser.start_call`."""
        super().start_call(name, id if _ID.fullmatch(id) else _new_id())

    def call(self, marker: str) -> Waiting[bool]:
        """See `MarkedParser.call`."""
        first = yield from self.text.comes("[", "{", space=True)
        if first is None:
            return (yield from self._named())
        return (yield from (self._list() if first == "[" else read_call(self)))

    def _list(self) -> Waiting[bool]:
        """Reads a list of objects."""
        text, found, before = self.text, False, "["
        while (yield from text.take(before, space=True)):
            if not (yield from read_call(self)):
                text.back()
                return found
            found, before = True, ","
            text.hold()
        yield from text.take("]", space=True)
        return found

    def _named(self) -> Waiting[bool]:
        """Reads a name, perhaps an id, and arguments."""
        text = self.text
        name, mark = yield from self._up_to(ID, ARGS)
        id = ""
        if mark == ID:
            id, mark = yield from self._up_to(ARGS)
        if mark is None or len(name.split()) != 1:
            return False
        text.release()
        self.start_call(name, id)
        if (yield from read_arguments(text, self.arguments)):
            self.end_call()
        return True

    def _up_to(self, *marks: str) -> Waiting[tuple[str, str | None]]:
        """A word and the marker behind it, None for none. An object may follow without one."""
        text, found = self.text, ""
        while len(found) < _LONGEST_NAME and (yield from text.peek()):
            mark = yield from text.comes(*marks, BEGIN, "{")
            if mark in (BEGIN, "{"):
                return found.strip(), mark if mark == "{" else None
            if mark is not None:
                yield from text.take(mark)
                return found.strip(), mark
            found += text.advance(1)
        return found, None


def _new_id() -> str:
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
