"""The families of output formats, and which of them a chat template belongs to."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection
from typing import Any

from ....graph.errors import RequestError
from .parser import THINK, OutputParser, Think, Tools
from .rules import Calls, Functions, Rules, Special, answer, offered


class OutputFormat:
    """How a family of models writes reasoning and calls of tools. One file of `families` each.

    name: of the family. visible: texts of control tokens that a parser must see in the text.
    think: the tags of reasoning, None for models that do not reason or do so otherwise (untagged).
    precedence: of several families that know a template the highest is meant."""

    name: str
    visible: tuple[str, ...] = (THINK.open, THINK.close)
    think: Think | None = THINK
    untagged = False
    precedence = 0

    def detects(self, template: str) -> bool:
        """Whether a chat template, by its source, is one of the family's."""
        return False

    def parser(
        self, *, tools: Tools, prompt_tail: str = "", reasoning: bool = True
    ) -> OutputParser:
        """A reader of one answer.

        tools: in OpenAI's form; None: calls are text. prompt_tail: the end of the prompt, which
        tells whether the answer begins inside reasoning. reasoning: False leaves it in the content,
        tags included."""
        return OutputParser()

    def grammar(
        self,
        *,
        tools: Tools,
        choice: str,
        parallel: bool,
        prompt_tail: str,
        schema: dict[str, Any] | None = None,
        special: Special,
    ) -> str | None:
        """What an answer must conform to, in llguidance's variant of Lark; None for anything.

        choice: none; auto: text is free, and a call must be one of a known function with arguments
        that fit its schema; required, or a function's name: at least one such call. parallel: more
        than one call is allowed. schema: a JSON schema of the content. In all cases reasoning may
        come first. special: the id of a control token by its text, None for what is none.
        Raises RequestError for what the family cannot be held to."""
        rules, functions = Rules(special), offered(tools, choice)
        calls = self.calls(rules, functions, parallel) if functions else None
        must = bool(functions) and choice != "auto"
        if must and calls is None:
            raise RequestError(
                f"tool_choice: calls of tools are not known of this model's chat template "
                f"({self.name}); expected none or auto, got {choice!r}"
            )
        return answer(
            rules, calls, must=must, schema=schema, think=self.think, prompt_tail=prompt_tail
        )

    def calls(self, rules: Rules, functions: Functions, parallel: bool) -> Calls | None:
        """The rules of valid calls. functions: names and schemas of the arguments. None: the family
        knows no calls."""
        return None


FORMATS: dict[str, type[OutputFormat]] = {}


def register(cls: type[OutputFormat]) -> type[OutputFormat]:
    """Makes a family known. Raises RequestError for a name that is taken."""
    if cls.name in FORMATS:
        raise RequestError(f"output format {cls.name!r} is registered twice")
    FORMATS[cls.name] = cls
    return cls


def formats() -> dict[str, type[OutputFormat]]:
    """All that are there, by name."""
    from . import families

    for info in sorted(pkgutil.iter_modules(families.__path__), key=lambda m: m.name):
        importlib.import_module(f"{families.__name__}.{info.name}")
    return dict(sorted(FORMATS.items()))


def format_for(template: str, control_texts: Collection[str]) -> OutputFormat:
    """The family of a chat template, by its source; plain for one that knows no tools.

    control_texts: those of the vocabulary's control tokens."""
    known = [made for cls in formats().values() if (made := cls()).detects(template)]
    found = max(known, key=lambda made: made.precedence)
    think = found.think
    known_tags = () if think is None else (think.open, think.close)
    if not any(tag in template or tag in control_texts for tag in known_tags):
        found.think = None
    return found
