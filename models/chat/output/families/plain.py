"""Models without tools: text, and reasoning in <think> tags before it."""

from __future__ import annotations

from ..formats import OutputFormat, register
from ..parser import MarkedParser, Tools


@register
class Plain(OutputFormat):
    """Text is text."""

    name = "plain"
    precedence = -1

    def detects(self, template: str) -> bool:
        """Any template."""
        return True

    def parser(
        self, *, tools: Tools, prompt_tail: str = "", reasoning: bool = True
    ) -> MarkedParser:
        """See `OutputFormat.parser`."""
        return MarkedParser((), think=self.think, prompt_tail=prompt_tail, reasoning=reasoning)
