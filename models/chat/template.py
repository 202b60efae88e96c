"""A chat template and what it is rendered with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...graph.errors import RequestError, TemplateError
from .plain import REASONING, plain, plain_dicts, plain_messages
from .render_worker import WORKER
from .stand_ins import StandIns, stand_ins

RESERVED = ("messages", "tools", "documents", "add_generation_prompt")
# Stands behind the message to continue while it is rendered; the blank tells whether the template
# strips messages.
_MARK = "THE-MESSAGE-GOES-ON-HERE "


@dataclass(frozen=True)
class Rendered:
    """The text of a chat. stand_ins: what stands in it for characters of messages, so that they are
    no part of a control token; None where all is as it is."""

    text: str
    stand_ins: StandIns | None = None

    @property
    def plain(self) -> str:
        """The text without stand-ins."""
        return self.text if self.stand_ins is None else self.stand_ins.uncover(self.text)


@dataclass(frozen=True)
class ChatTemplate:
    """A template in Jinja's language. name: where it comes from, for messages; specials: texts of
    special tokens by the names that templates know (bos_token, eos_token, ...)."""

    source: str
    name: str
    specials: Mapping[str, str] = field(default_factory=dict)

    def render(self, messages: Any, **options: Any) -> str:
        """The text of a chat, as `apply_chat_template` of transformers makes it. The arguments are
        those of `rendered`, and so are the errors."""
        return self.rendered(messages, **options).text

    def rendered(
        self,
        messages: Any,
        *,
        control_texts: Sequence[str] = (),
        tools: Any = None,
        documents: Any = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool | str = False,
        **more: Any,
    ) -> Rendered:
        """The text of a chat, with stand-ins for what messages, tools and documents have of
        control tokens.

        messages: dicts with "role" and "content", and what the template knows besides
        (tool_calls, reasoning_content, ...); control_texts: those of the vocabulary's control
        tokens, none for a text without stand-ins; tools: JSON schemas of functions in OpenAI's
        form; documents: dicts; add_generation_prompt: end with the start of an answer;
        continue_final_message: end inside the last message, in its content or the field named;
        more: further variables of the template (enable_thinking, ...).
        Raises RequestError for arguments of other types, TemplateError where the template fails,
        refuses the messages, or takes too long or too much memory."""
        taken = [name for name in RESERVED if name in more]
        if taken:
            raise RequestError(f"{taken[0]!r} is an argument, not a further variable of a template")
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "continue_final_message goes on with the last message, add_generation_prompt "
                "starts another one; give one of them"
            )
        given: dict[str, Any] = {
            "messages": plain_messages(messages),
            "tools": plain_dicts(tools, "tools"),
            "documents": plain_dicts(documents, "documents"),
        }
        cover = stand_ins(control_texts, self.source, given) if control_texts else None
        if cover is not None:
            given = {name: cover.cover(value) for name, value in given.items()}
        values = {
            **self.specials,
            **{name: plain(value, name) for name, value in more.items()},
            **given,
            "add_generation_prompt": bool(add_generation_prompt),
        }
        chat = values.pop("messages")
        if continue_final_message:
            part = continue_final_message if isinstance(continue_final_message, str) else "content"
            text = self._render_open(chat, part, values)
        else:
            text = self._text(chat, values)
        return Rendered(text) if cover is None else Rendered(cover.settle(text), cover)

    def _text(self, chat: list[dict[str, Any]], values: Mapping[str, Any]) -> str:
        return WORKER.render(self.name, self.source, {**values, "messages": chat})

    def _render_open(self, chat: list[dict[str, Any]], part: str, values: Mapping[str, Any]) -> str:
        """The text up to the end of a field of the last message."""
        said = self._mark(chat[-1], part)
        text = self._text(chat, values)
        mark = _MARK.strip()
        if mark not in text or said.strip() not in text:
            raise TemplateError(
                f"{self.name}: the last message cannot be continued: the chat template leaves out "
                f"or changes its {part!r}"
            )
        at = text.rindex(mark)
        return text[:at] if text.startswith(_MARK, at) else text[:at].rstrip()

    def _mark(self, message: dict[str, Any], part: str) -> str:
        """Put the mark behind what is to be continued; what that is."""
        said = message.get(part)
        if said is None:
            raise RequestError(f"the last message has no {part!r} that could be continued")
        names = [n for n in REASONING if message.get(n) == said] if part in REASONING else [part]
        if not any(name in self.source for name in names):
            raise TemplateError(f"{self.name}: the chat template does not read {part!r}")
        if isinstance(said, str):
            message.update({name: said + _MARK for name in names})
            return said
        texts = [block for block in said if "text" in block] if isinstance(said, list) else []
        if not texts:
            raise RequestError(f"the last message's {part!r} has no text that could be continued")
        said = texts[-1]["text"]
        texts[-1]["text"] = said + _MARK
        return said
