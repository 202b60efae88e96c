"""Calls with keys and values in tags: GLM 4.5, 4.6, 4.7."""

from __future__ import annotations

import re
from typing import Any

from ..formats import OutputFormat, register
from ..parameters import Arguments, Schemas, parameter_rules
from ..parser import THINK, MarkedParser, Tools
from ..reading import SPACE, Waiting, gathered
from ..rules import GAP, Calls, Functions, Rules, several

BEGIN, END = "<tool_call>", "</tool_call>"
KEY, KEY_END = "<arg_key>", "</arg_key>"
VALUE, VALUE_END = "<arg_value>", "</arg_value>"


@register
class Glm(OutputFormat):
    """`<tool_call>NAME\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n</tool_call>`.
    Texts are bare, other values JSON."""

    name = "glm"
    visible = (THINK.open, THINK.close, BEGIN, END, KEY, KEY_END, VALUE, VALUE_END)
    precedence = 1

    def detects(self, template: str) -> bool:
        """Templates that write both of the tags."""
        return BEGIN in template and KEY in template

    def parser(self, *, tools: Tools, prompt_tail: str = "", reasoning: bool = True) -> GlmParser:
        """See `OutputFormat.parser`."""
        return GlmParser(tools, think=self.think, prompt_tail=prompt_tail, reasoning=reasoning)

    def calls(self, rules: Rules, functions: Functions, parallel: bool) -> Calls:
        """See `OutputFormat.calls`."""

        def head(key: str) -> str:
            parts = [*map(rules.literal, (KEY, key, KEY_END)), GAP, rules.literal(VALUE)]
            return f"{GAP} {' '.join(parts)}"

        found = []
        for name, schema in functions:
            values = parameter_rules(rules, (name, schema), head, VALUE_END)
            found.append(f"{rules.literal(name)} {values}")
        call = rules.rule(" | ".join(found))
        return several(rules, BEGIN, f"{call} {GAP} {rules.literal(END)}", parallel)


class GlmParser(MarkedParser):
    """Reads the calls. The tag that ends a call may be missing."""

    def __init__(self, tools: Tools, **options: Any) -> None:
        super().__init__((BEGIN,) if tools else (), **options)
        self._schemas = Schemas(tools)

    def call(self, marker: str) -> Waiting[bool]:
        """See `MarkedParser.call`."""
        text, name = self.text, ""
        yield from text.skip_space()
        while not re.search(r"[\s<]", name):
            char = yield from text.peek()
            if not char:
                return False
            name += text.advance(1)
        # What ended the name is looked at again.
        text.back()
        text.hold()
        yield from text.skip_space()
        name = text.advance(len(name) - 1)
        if not name or not (yield from text.comes(KEY, END, space=True)):
            return False
        text.release()
        arguments = Arguments(self, self._schemas, name)
        while (yield from text.take(KEY, space=True)):
            key, end = yield from gathered(lambda give: text.until((KEY_END,), give))
            if not end or not (yield from text.take(VALUE, space=True)):
                text.advance(len(text.rest) if text.is_cut(VALUE) else 0)
                return True
            if not (yield from arguments.read(key.strip(SPACE), VALUE_END)):
                return True
        if text.is_cut(KEY, END):
            text.advance(len(text.rest))
            return True
        arguments.end()
        yield from self.end_marker(END)
        return True
