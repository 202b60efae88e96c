"""What can be typed in a chat besides messages: lines that start with a slash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engine import SamplerParams
from ..graph.errors import RequestError
from ..graph.fields import Option, options_of
from .conversation import Conversation
from .ending import Ending
from .generating import summary
from .messages import note
from .parameters import typed_as

if TYPE_CHECKING:
    from ..engine import Generation


Setting = tuple[str, "Field[Any]", Option]


class Leave(Exception):
    """The chat is to end."""


class Command(NamedTuple):
    """A line of /help and what it stands for."""

    words: str
    help: str
    do: Callable[[Conversation, str], Generation | None]


def obey(conversation: Conversation, line: str) -> Generation | None:
    """Do what a line asks for; a generation where it asks for an answer. Raises Leave, or
    RequestError for what is wrong."""
    name, _, argument = line[1:].partition(" ")
    command = COMMANDS.get(ALIASES.get(name, name))
    if command is None:
        raise RequestError(f"/{name} is no command; /help lists them")
    return command.do(conversation, argument.strip())


def _help(_: Conversation, __: str) -> None:
    width = max(len(command.words) for command in COMMANDS.values())
    note("\n".join(f"{c.words:{width}}  {c.help}" for c in COMMANDS.values()))
    note(
        '\nA line that ends with \\ goes on in the next; """ begins and ends a message of several.'
    )
    note("Ctrl-C ends an answer; what came until then stays.")


def _clear(conversation: Conversation, _: str) -> None:
    conversation.clear()
    note("(the chat starts afresh)")


def _system(conversation: Conversation, text: str) -> None:
    if text:
        conversation.set_system("" if text == "none" else text)
    note(f"system: {conversation.system or '(none)'}")


def _save(conversation: Conversation, name: str) -> None:
    conversation.save(_path(name, "save"))
    note(f"({len(conversation.messages)} messages written to {name})")


def _load(conversation: Conversation, name: str) -> None:
    conversation.load(_path(name, "load"))
    note(f"({len(conversation.messages)} messages read from {name})")


def _path(name: str, command: str) -> Path:
    if not name:
        raise RequestError(f"/{command}: expected a file, as in /{command} chat.json")
    return Path(name).expanduser()


def _set(conversation: Conversation, text: str) -> None:
    name, _, value = text.partition(" ")
    if not name:
        lines = [_shown(conversation, *setting) for setting in _settings().values()]
        note("\n".join(dict.fromkeys(lines)))
        return
    found = _settings().get(name.lstrip("-").replace("-", "_"))
    if found is None:
        raise RequestError(f"/set: there is no {name!r}; /set alone lists what there is")
    holder, each, option = found
    try:
        made = _read(each, option, value.strip())
    except ValueError as error:
        raise RequestError(f"/set {name}: {error}") from None
    if holder == "sampling":
        changed = replace(conversation.sampling, **{each.name: made})
        changed.validate(conversation.model.n_vocab)
        conversation.sampling = changed
    else:
        conversation.ending = replace(conversation.ending, **{each.name: made})
    note(_shown(conversation, *found))


def _settings() -> dict[str, Setting]:
    """What /set sets, by all its names."""
    found: dict[str, Setting] = {}
    for holder, cls in (("sampling", SamplerParams), ("ending", Ending)):
        for each, option in options_of(cls):
            for name in (each.name, *(flag.strip("-") for flag in option.flags)):
                found[name.replace("-", "_")] = (holder, each, option)
    return found


def _shown(conversation: Conversation, holder: str, each: Field[Any], _: Option) -> str:
    return f"{each.name} {getattr(getattr(conversation, holder), each.name)}"


def _read(each: Field[Any], option: Option, text: str) -> Any:
    """A field's value from its text. Raises ValueError."""
    if not text:
        raise ValueError("expected a value")
    kind = typed_as(each, option)
    if option.read:
        return option.read([text] if option.repeatable else text)
    if kind is bool:
        if text not in ("on", "off"):
            raise ValueError(f"expected on or off, got {text!r}")
        return text == "on"
    try:
        value = kind(text)
    except ValueError:
        raise ValueError(f"expected a number, got {text!r}") from None
    if option.unset is not None and value == option.unset:
        return None
    fault = option.limits.fault(value) if option.limits else ""
    if fault:
        raise ValueError(fault)
    return value


def _stats(conversation: Conversation, _: str) -> None:
    session = conversation.session
    if conversation.results:
        last = conversation.results[-1]
        note(summary(conversation.model, last))
        note(f"{last.timings['cache_n']} of the prompt's tokens were there from earlier turns")
    note(
        f"{len(conversation.messages)} messages, {len(conversation.results)} answers; "
        f"the context holds {session.length()} of {session.n_ctx} tokens"
    )


def _undo(conversation: Conversation, _: str) -> None:
    conversation.undo()
    note(f"({len(conversation.messages)} messages are left)")


def _retry(conversation: Conversation, _: str) -> Generation:
    return conversation.ask_again()


def _exit(_: Conversation, __: str) -> None:
    raise Leave


COMMANDS = {
    "help": Command("/help", "this list", _help),
    "clear": Command("/clear", "forget the chat, not the system message", _clear),
    "system": Command("/system [TEXT]", "show or set the system message; none: remove it", _system),
    "save": Command("/save FILE", "write the chat as JSON", _save),
    "load": Command("/load FILE", "go on with a chat that was saved", _load),
    "set": Command("/set [NAME VALUE]", "show or set how answers are generated", _set),
    "stats": Command("/stats", "tokens and rates of the last answer, use of the context", _stats),
    "undo": Command("/undo", "forget your last message and its answer", _undo),
    "retry": Command("/retry", "answer your last message again", _retry),
    "exit": Command("/exit", "end, like Ctrl-D", _exit),
}
ALIASES = {"?": "help", "bye": "exit", "quit": "exit", "regen": "retry"}
