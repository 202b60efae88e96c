"""Calls of DeepSeek V3, R1 and V3.1."""

from __future__ import annotations

from ..formats import OutputFormat, register
from ..parser import THINK, Tools
from ..reading import Waiting
from ..rules import Calls, Functions, Rules
from ..sections import Marks, SectionParser

MARKS = Marks(
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)
_KIND, _FENCE = "function", "```json"
_BLOCK, _BLOCK_END = f"\n{_FENCE}\n", "\n```"


@register
class DeepSeek(OutputFormat):
    """`<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>` in a section (V3.1).

    V3 and R1 write the word `function` before the separator, and behind it the name and a block of
    JSON.

    Source: the chat templates of DeepSeek-R1 and DeepSeek-V3.1."""

    name = "deepseek"
    visible = (THINK.open, THINK.close, *MARKS.all)
    precedence = 1

    def detects(self, template: str) -> bool:
        """Templates that write such sections."""
        return MARKS.begin in template and MARKS.separator in template

    def parser(
        self, *, tools: Tools, prompt_tail: str = "", reasoning: bool = True
    ) -> DeepSeekParser:
        """See `OutputFormat.parser`."""
        return DeepSeekParser(MARKS, self.think, tools, prompt_tail, reasoning)

    def calls(self, rules: Rules, functions: Functions, parallel: bool) -> Calls:
        """See `OutputFormat.calls`."""
        separator, calls = rules.literal(MARKS.separator), list[str]()
        for name, schema in functions:
            arguments = rules.rule(rules.json(schema))
            calls.append(f"{rules.literal(name)} {separator} {arguments}")
            block = f"{rules.literal(name + _BLOCK)} {arguments} {rules.literal(_BLOCK_END)}"
            calls.append(f"{rules.literal(_KIND)} {separator} {block}")
        return MARKS.calls(rules, calls, parallel)


class DeepSeekParser(SectionParser):
    """Reads names on either side of the separator."""

    def name(self) -> Waiting[str | None]:
        """See `SectionParser.name`."""
        name = yield from self.up_to(self.marks.separator)
        if name != _KIND or (yield from self.text.comes("{", space=True)):
            return name
        return (yield from self.up_to("\n", _FENCE))
