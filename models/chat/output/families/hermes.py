"""Calls as JSON objects in <tool_call> tags: Hermes, Qwen2.5, Qwen3, SmolLM3, Granite 4."""

from __future__ import annotations

from ..formats import OutputFormat, register
from ..json_reading import read_call
from ..parser import THINK, MarkedParser, Tools
from ..reading import Waiting
from ..rules import GAP, Calls, Functions, Rules, call_objects, several

BEGIN, END = "<tool_call>", "</tool_call>"


@register
class Hermes(OutputFormat):
    """`<tool_call>\\n{"name": NAME, "arguments": {...}}\\n</tool_call>`."""

    name = "hermes"
    visible = (THINK.open, THINK.close, BEGIN, END)

    def detects(self, template: str) -> bool:
        """Templates that write <tool_call>, and no list of calls; other families with that tag
        go before."""
        return BEGIN in template and "<tool_calls>" not in template

    def parser(
        self, *, tools: Tools, prompt_tail: str = "", reasoning: bool = True
    ) -> HermesParser:
        """See `OutputFormat.parser`."""
        markers = (BEGIN,) if tools else ()
        return HermesParser(markers, think=self.think, prompt_tail=prompt_tail, reasoning=reasoning)

    def calls(self, rules: Rules, functions: Functions, parallel: bool) -> Calls:
        """See `OutputFormat.calls`."""
        call = call_objects(rules, functions)
        return several(rules, BEGIN, f"{GAP} {call} {GAP} {rules.literal(END)}", parallel)


class HermesParser(MarkedParser):
    """Reads the calls. Several objects in one pair of tags are several calls; an end tag may be
    missing."""

    def call(self, marker: str) -> Waiting[bool]:
        """See `MarkedParser.call`."""
        text = self.text
        if not (yield from read_call(self, (END,))):
            return False
        while (yield from text.comes("{", space=True)):
            text.hold()
            if not (yield from read_call(self, (END,))):
                text.back()
                break
        yield from self.end_marker(END)
        return True
