"""A chat in progress: messages, how answers are generated, and what a session holds of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..graph.errors import RequestError
from .files import read_text, write_text

if TYPE_CHECKING:
    from ..engine import Generation, Model, Result, SamplerParams, Session
    from ..engine.constraints import Constraint
    from ..speculative import Speculation
    from .ending import Ending


@dataclass
class Conversation:
    """Messages that a model answers over one session, which keeps what it holds of the chat from
    turn to turn.

    template: what `model.chat` takes besides (chat_template, chat_template_kwargs); asked: the
    messages of the last generation."""

    model: Model
    session: Session
    template: Mapping[str, Any]
    sampling: SamplerParams
    ending: Ending
    drafting: Speculation | Any = None
    constraint: Constraint | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)

    @property
    def system(self) -> str:
        """The system message, "" for none."""
        first = self.messages[0] if self.messages else {}
        return str(first.get("content", "")) if first.get("role") == "system" else ""

    def ask(self, text: str) -> Generation:
        """The answer to a message of the user; `heard` makes both part of the chat. Raises what
        `model.chat` raises."""
        return self._generate([*self.messages, {"role": "user", "content": text}])

    def ask_again(self) -> Generation:
        """Another answer to the user's last message. Raises RequestError where there is none."""
        last = self._last_question()
        return self._generate(self.messages[: last + 1])

    def heard(self, result: Result) -> None:
        """The last generation's messages and its answer are the chat from now on."""
        self.messages = [*self.asked, {"role": "assistant", "content": result.text}]
        self.results.append(result)

    def clear(self) -> None:
        """Forget all but the system message."""
        self.messages = self.messages[:1] if self.system else []

    def undo(self) -> None:
        """Forget the user's last message and what follows it. Raises RequestError where there is
        none."""
        del self.messages[self._last_question() :]

    def set_system(self, text: str) -> None:
        """Put a system message in front, "" for none."""
        del self.messages[: bool(self.system)]
        if text:
            self.messages.insert(0, {"role": "system", "content": text})

    def save(self, path: Path) -> None:
        """Write the messages as JSON. Raises RequestError where that cannot be."""
        write_text(path, json.dumps({"messages": self.messages}, ensure_ascii=False, indent=1))

    def load(self, path: Path) -> None:
        """Replace the messages by those of a file that `save` wrote, or of a list of messages.
        Raises RequestError for files that cannot be read or hold something else."""
        text = read_text(path, "/load")
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{path}: expected a chat as JSON, got no JSON: {error}") from None
        messages = found.get("messages") if isinstance(found, dict) else found
        from ..models.chat.plain import plain_messages

        try:
            self.messages = plain_messages(messages) if messages != [] else []
        except RequestError as error:
            raise RequestError(f"{path}: {error}") from None

    def _generate(self, messages: list[dict[str, Any]]) -> Generation:
        self.asked = messages
        return self.model.chat(
            messages,
            self.ending.n,
            stop=self.ending.stop,
            stop_token_ids=self.ending.stop_token_ids or (),
            ignore_eos=self.ending.ignore_eos,
            session=self.session,
            speculative=self.drafting,
            constraint=self.constraint,
            **self.template,
            **vars(self.sampling),
        )

    def _last_question(self) -> int:
        """Where the user's last message is."""
        for at in reversed(range(len(self.messages))):
            if self.messages[at]["role"] == "user":
                return at
        raise RequestError("there is no message of yours yet")
