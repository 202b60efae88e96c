"""Options that say how messages become a prompt."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..graph.fields import option
from .files import read_text
from .misuse import misuse

if TYPE_CHECKING:
    from ..engine import Model


TEMPLATE_FILE = "--chat-template-file"


def read_object(text: str) -> dict[str, Any]:
    """The object of a JSON text. Raises ValueError."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected a JSON object, got {text!r}: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"expected a JSON object, got {text!r}")
    return found


@dataclass(frozen=True)
class Templating:
    """The system message, and the template with its variables."""

    system: str | None = option(
        None,
        "-sys",
        "--system",
        metavar="TEXT",
        help="System message, in front of the chat.",
    )
    chat_template: Path | None = option(
        None,
        TEMPLATE_FILE,
        metavar="FILE",
        help="Chat template (Jinja) to use.",
        shown="the model's own",
    )
    chat_template_kwargs: dict[str, Any] | None = option(
        None,
        "--chat-template-kwargs",
        metavar="JSON",
        help="Further variables of the template, a JSON object.",
        read=read_object,
    )
    thinking: bool = option(
        True,
        "--no-think",
        help="Answer without thinking first, where the template can ask for that.",
    )
    parse_special: bool = option(
        True,
        "--no-parse-special",
        help="Control tokens that a message or prompt spells out are text.",
    )

    @property
    def given(self) -> bool:
        """Whether anything was asked for that makes a prompt a message."""
        return self != Templating(parse_special=self.parse_special)

    def messages(self) -> list[dict[str, Any]]:
        """The messages in front of the first one of the user."""
        return [{"role": "system", "content": self.system}] if self.system else []

    def arguments(self) -> dict[str, Any]:
        """What `model.chat` and `model.chat_prompt` are called with. Raises RequestError for a file
        that cannot be read, typer.BadParameter for one that is no template."""
        variables = dict(self.chat_template_kwargs or {})
        if not self.thinking:
            variables["enable_thinking"] = False
        template = None
        if self.chat_template is not None:
            template = read_text(self.chat_template, TEMPLATE_FILE)
            if "{" not in template:
                raise misuse(
                    f"{self.chat_template}: expected a Jinja template, got a text without any of "
                    "its marks ({{ ... }})",
                    TEMPLATE_FILE,
                )
        return {
            "chat_template": template,
            "chat_template_kwargs": variables,
            "parse_special": self.parse_special,
        }

    def check(self, model: Model) -> None:
        """Raise TemplateError for a model without a template, where none was given."""
        if self.chat_template is None:
            model.source.chat_templates.choose()
