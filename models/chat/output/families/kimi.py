"""Calls of Kimi K2: ids with the function's name in them, and JSON."""

from __future__ import annotations

import re

from ..formats import OutputFormat, register
from ..parser import THINK, Tools
from ..reading import Waiting
from ..rules import Calls, Functions, Rules
from ..sections import Marks, SectionParser

MARKS = Marks(
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
)
_ID = re.compile(r"(?:functions\.)?(.*?)(?::\d+)?", re.DOTALL)


@register
class Kimi(OutputFormat):
    """`<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>` in a
    section.

    Source: the chat templates of Kimi-K2-Instruct and Kimi-K2-Thinking."""

    name = "kimi"
    visible = (THINK.open, THINK.close, *MARKS.all)
    precedence = 1

    def detects(self, template: str) -> bool:
        """Templates that write such sections."""
        return MARKS.begin in template and MARKS.separator in template

    def parser(self, *, tools: Tools, prompt_tail: str = "", reasoning: bool = True) -> KimiParser:
        """See `OutputFormat.parser`."""
        return KimiParser(MARKS, self.think, tools, prompt_tail, reasoning)

    def calls(self, rules: Rules, functions: Functions, parallel: bool) -> Calls:
        """See `OutputFormat.calls`."""
        calls = [
            f"{rules.literal(f'functions.{name}:')} /[0-9]{{1,3}}/ "
            f"{rules.literal(MARKS.separator)} {rules.json(schema)}"
            for name, schema in functions
        ]
        return MARKS.calls(rules, calls, parallel)


class KimiParser(SectionParser):
    """Reads the names out of the ids."""

    def name(self) -> Waiting[str | None]:
        """See `SectionParser.name`."""
        found = _ID.fullmatch((yield from self.up_to(self.marks.separator)) or "")
        return found.group(1) or None if found else None
