"""Calls of LFM2 and LFM2.5: a list of calls as in Python."""

from __future__ import annotations

from ..formats import OutputFormat, register
from ..json_reading import read_call as read_json_call
from ..parser import THINK, MarkedParser, Tools
from ..python_reading import read_calls
from ..python_rules import call_with_keywords
from ..reading import Waiting
from ..rules import Calls, Functions, Rules

BEGIN, END = "<|tool_call_start|>", "<|tool_call_end|>"
_LISTS = ("<|tool_list_start|>", '"List of tools: ["')


@register
class Lfm2(OutputFormat):
    """`<|tool_call_start|>[f(a="x", b=1), g()]<|tool_call_end|>`.

    Source: the model cards and chat templates of LFM2 and LFM2.5."""

    name = "lfm2"
    visible = (THINK.open, THINK.close, BEGIN, END)
    precedence = 1

    def detects(self, template: str) -> bool:
        """Templates with the token before calls or what introduces a list of tools."""
        return any(text in template for text in (BEGIN, *_LISTS))

    def parser(self, *, tools: Tools, prompt_tail: str = "", reasoning: bool = True) -> Lfm2Parser:
        """See `OutputFormat.parser`."""
        markers = (BEGIN,) if tools else ()
        return Lfm2Parser(markers, think=self.think, prompt_tail=prompt_tail, reasoning=reasoning)

    def calls(self, rules: Rules, functions: Functions, parallel: bool) -> Calls:
        """See `OutputFormat.calls`."""
        calls = [call_with_keywords(rules, name, schema) for name, schema in functions]
        call = rules.rule(" | ".join(calls))
        more = f" (/, ?/ {call})*" if parallel else ""
        return Calls(BEGIN, rules.rule(f'"[" {call}{more} "]" {rules.literal(END)}'))


class Lfm2Parser(MarkedParser):
    """Reads the calls; those that are written as JSON objects, as a system prompt may ask for it,
    as well. The token of their end may be missing."""

    def call(self, marker: str) -> Waiting[bool]:
        """See `MarkedParser.call`."""
        text = self.text
        found = yield from read_calls(self, (END,))
        if not found:
            text.back()
            text.hold()
            found = yield from self._objects()
        yield from text.take(END, space=True)
        return found

    def _objects(self) -> Waiting[bool]:
        text, found = self.text, False
        listed = yield from text.take("[", space=True)
        while not found or (yield from text.take(",", space=True)):
            if not (yield from read_json_call(self, (END,))):
                return found
            found = True
            text.hold()
        yield from text.take("]" if listed else END, space=True)
        return found
