"""Models without tools: text, and reasoning in <think> tags before it."""

from __future__ import annotations

from ..formats import OutputFormat, register
from ..parser import MarkedParser, Think, Tools

THINK = Think()


@register
class Plain(OutputFormat):
    """Text is text."""

    name = "plain"
    visible = (THINK.open, THINK.close)
    precedence = -1

    def detects(self, template: str) -> bool:
        """Any template."""
        return True

    def parser(
        self, *, tools: Tools, prompt_tail: str = "", reasoning: bool = True
    ) -> MarkedParser:
        """See `OutputFormat.parser`."""
        return MarkedParser((), think=THINK, prompt_tail=prompt_tail, reasoning=reasoning)
