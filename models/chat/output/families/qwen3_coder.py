"""Calls with parameters in tags: Qwen3-Coder, Qwen3.5, Nemotron 3, Step 3.5."""

from __future__ import annotations

import re
from typing import Any

from ..formats import OutputFormat, register
from ..parameters import Arguments, Schemas, parameter_rules
from ..parser import THINK, MarkedParser, Tools
from ..reading import Waiting, gathered
from ..rules import GAP, Calls, Functions, Rules, several

BEGIN, END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
NEWLINE = r'"\n"'
SPACE_IN = re.compile(r"\s")
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"


@register
class Qwen3Coder(OutputFormat):
    """`<tool_call>\\n<function=NAME>\\n<parameter=KEY>\\nVALUE\\n</parameter>\\n</function>\\n
    </tool_call>`. Texts are bare, other values JSON."""

    name = "qwen3-coder"
    visible = (THINK.open, THINK.close, BEGIN, END)
    precedence = 1

    def detects(self, template: str) -> bool:
        """Templates that write both of the tags."""
        return all(tag in template for tag in (BEGIN, FUNCTION, PARAMETER))

    def parser(
        self, *, tools: Tools, prompt_tail: str = "", reasoning: bool = True
    ) -> Qwen3CoderParser:
        """See `OutputFormat.parser`."""
        return Qwen3CoderParser(
            tools, think=self.think, prompt_tail=prompt_tail, reasoning=reasoning
        )

    def calls(self, rules: Rules, functions: Functions, parallel: bool) -> Calls:
        """See `OutputFormat.calls`."""

        def head(key: str) -> str:
            return f"{GAP} {rules.literal(f'{PARAMETER}{key}>')} {NEWLINE}"

        found = []
        for name, schema in functions:
            begin = rules.literal(f"{FUNCTION}{name}>")
            values = parameter_rules(rules, (name, schema), head, PARAMETER_END, True)
            found.append(f"{begin} {values} {GAP} {rules.literal(FUNCTION_END)}")
        call = rules.rule(" | ".join(found))
        return several(rules, BEGIN, f"{GAP} {call} {GAP} {rules.literal(END)}", parallel)


class Qwen3CoderParser(MarkedParser):
    """Reads the calls. The outer tags may be missing, as may a tag that ends a function."""

    def __init__(self, tools: Tools, **options: Any) -> None:
        super().__init__((BEGIN, FUNCTION) if tools else (), **options)
        self._schemas = Schemas(tools)

    def call(self, marker: str) -> Waiting[bool]:
        """See `MarkedParser.call`."""
        text = self.text
        if marker == BEGIN and not (yield from text.take(FUNCTION, space=True)):
            return False
        if not (yield from self._function()):
            return False
        while marker == BEGIN and (yield from text.take(FUNCTION, space=True)):
            if not (yield from self._function()):
                break
        yield from self.end_marker(END)
        return True

    def _function(self) -> Waiting[bool]:
        """Reads a function from its name on. Returns whether it has one."""
        text = self.text
        name, end = yield from gathered(lambda give: text.until((">", "\n", "<"), give))
        if end != ">" or not name or SPACE_IN.search(name):
            return False
        text.release()
        arguments = Arguments(self, self._schemas, name)
        while (yield from text.take(PARAMETER, space=True)):
            key, end = yield from gathered(lambda give: text.until((">",), give))
            if not end or not (yield from arguments.read(key, PARAMETER_END, True)):
                return True
        if (yield from text.take(FUNCTION_END, space=True)):
            arguments.end()
        elif text.is_cut(FUNCTION_END, PARAMETER):
            text.advance(len(text.rest))
        else:
            arguments.end()
        return True
