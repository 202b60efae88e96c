"""From messages and fields of a request to tokens, constraints and the reader of the answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..engine.chat import ChatPrompt
from ..engine.constraints import Constraint, ReasoningBudget
from ..models.chat.output import OutputFormat, OutputParser, format_for
from ..models.tokenizer import TokenType
from .failures import bad_request
from .long_texts import check_text
from .served import Served

TAIL = 1 << 16  # characters of a prompt's end that tell whether reasoning has begun
TOOL_CHOICES = ("none", "auto", "required")
_WITH_CONTENT = ("system", "user")  # roles whose messages are nothing else


@dataclass
class Chat:
    """What a chat asks for, of any interface. response_schema: of a JSON answer, {} for any object;
    choice: none, auto, required or the name of a function; split: reasoning is told apart; budget:
    tokens of reasoning, None for any number."""

    messages: Sequence[dict[str, Any]]
    tools: Sequence[dict[str, Any]] | None = None
    choice: str = "auto"
    parallel: bool = True
    response_schema: Mapping[str, Any] | None = None
    grammar: str | None = None
    template: str | None = None
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    documents: Sequence[dict[str, Any]] | None = None
    continues: bool = False
    split: bool = True
    budget: int | None = None

    @property
    def offered(self) -> Sequence[dict[str, Any]] | None:
        """The tools that an answer may call, None for none."""
        return self.tools if self.choice != "none" else None


@dataclass(frozen=True)
class Prepared:
    """A chat that can be submitted. options: of `Engine.submit`."""

    text: str
    tokens: list[int]
    options: dict[str, Any]
    chat: Chat
    format: OutputFormat

    def parser(self) -> OutputParser:
        """A reader of one answer."""
        chat = self.chat
        return self.format.parser(
            tools=chat.offered,
            prompt_tail=self.text[-TAIL:],
            reasoning=chat.split,
        )

    def joined(self, options: dict[str, Any]) -> dict[str, Any]:
        """Options of `Engine.submit`: the template's end of a turn ends the answer, too."""
        own = dict(self.options)
        if options["ignore_eos"]:
            own["stop_token_ids"] = ()
        return {**options, **own}


def thinking_kwargs(thinks: bool | None, effort: str | None = None) -> dict[str, Any]:
    """What templates are told of reasoning: whether there is any, and how much; None is left to
    them. Of an effort that is "none" follows that there is none."""
    found: dict[str, Any] = {}
    if effort is not None:
        found["reasoning_effort"] = effort
    if thinks is None and effort == "none":
        thinks = False
    if thinks is not None:
        found["enable_thinking"] = thinks
    return found


def prepare(served: Served, chat: Chat) -> Prepared:
    """Render a chat and compile what its answer must conform to. Takes its time: for a thread.
    Raises RequestError and ApiError for what cannot be honoured."""
    model, tools = served.model, chat.offered
    rendered = render(served, chat, partial(check_text, served))
    template = model.source.chat_templates.choose(chat.template, tools is not None)
    found = format_for(template.source, model.tokenizer.control_texts)
    constraint = _constraint(served, chat, found, rendered.text, tools)
    if chat.budget is not None and chat.budget < served.n_ctx - len(rendered.tokens):
        constraint = _bounded(served, chat, found, rendered.text, constraint)
    shown = [t for t in map(control_token(served), found.visible) if t is not None]
    options: dict[str, Any] = {
        "stop_token_ids": rendered.stop_token_ids,
        "shown_token_ids": shown,
        "constraint": constraint,
    }
    return Prepared(rendered.text, rendered.tokens, options, chat, found)


def render(served: Served, chat: Chat, check: Callable[[str], None] | None = None) -> ChatPrompt:
    """The prompt that a chat becomes. check: is given its text before that is encoded. Takes its
    time: for a thread. Raises what `prepare` raises but for what an answer must conform to."""
    return served.model.chat_prompt(
        [_message(message, i) for i, message in enumerate(chat.messages)],
        tools=chat.offered,
        documents=chat.documents,
        chat_template=chat.template,
        chat_template_kwargs=chat.template_kwargs,
        continue_final_message=chat.continues,
        check=check,
    )


def control_token(served: Served) -> Any:
    """Finds the id of a control token by its text, None for what is none."""
    tokenizer = served.model.tokenizer

    def find(text: str) -> int | None:
        token = tokenizer.token_id(text)
        is_control = token is not None and tokenizer.token_type(token) == TokenType.CONTROL
        return token if is_control else None

    return find


def _constraint(
    served: Served,
    chat: Chat,
    found: OutputFormat,
    text: str,
    tools: Sequence[dict[str, Any]] | None,
) -> Constraint | None:
    """What the answer must conform to, None for anything."""
    if chat.grammar is not None:
        if tools or chat.response_schema is not None:
            raise bad_request("grammar: cannot be joined with tools or response_format", "grammar")
        return served.constraint("grammar", chat.grammar)
    lark = found.grammar(
        tools=tools,
        choice=chat.choice,
        parallel=chat.parallel,
        prompt_tail=text[-TAIL:],
        schema=None if chat.response_schema is None else dict(chat.response_schema),
        special=control_token(served),
    )
    return None if lark is None else served.constraint("grammar", lark)


def _bounded(
    served: Served, chat: Chat, found: OutputFormat, text: str, within: Constraint | None
) -> Constraint | None:
    """A constraint that also ends reasoning in time; within, for models that do not reason. Raises
    ApiError for models that cannot be held to that."""
    if found.untagged:
        raise bad_request(
            f"thinking.budget_tokens: cannot be held to by models of the family {found.name}, "
            "whose reasoning has no tags; leave it out, and say how much by an effort",
            "thinking",
        )
    if found.think is None:
        return within
    if chat.grammar is not None:
        raise bad_request("thinking.budget_tokens: cannot be joined with grammar", "thinking")
    think, budget = found.think, chat.budget or 0
    begun = think.is_open(text[-TAIL:])
    return ReasoningBudget(
        served.model.tokenizer, budget, think.open, think.close, begun=begun, within=within
    )


def _message(given: Mapping[str, Any], index: int) -> dict[str, Any]:
    """A message as templates have it: one text as its content, and arguments of calls as
    objects. Raises ApiError."""
    message, where = dict(given), f"messages[{index}]"
    if message.get("role") == "developer":
        message["role"] = "system"
    role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
    if isinstance(content, list):
        message["content"] = join_parts(content, f"{where}.content")
    elif not isinstance(content, str) and not (content is None and role not in _WITH_CONTENT):
        raise bad_request(f"{where}.content: expected a text or a list of parts, got {content!r}")
    if calls is not None and not isinstance(calls, list):
        raise bad_request(f"{where}.tool_calls: expected a list, got {calls!r}")
    if calls:
        message["tool_calls"] = [
            _call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)
        ]
        message["content"] = message.get("content") or ""
    return message


def join_parts(parts: Sequence[Any], where: str) -> str:
    """The text of a content given in parts. Raises ApiError for parts that are no text."""
    texts = []
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in ("text", "input_text", "output_text") or not isinstance(
            part.get("text"), str
        ):
            raise bad_request(f"{where}: expected parts of type text, got {kind or part!r}")
        texts.append(part["text"])
    return "".join(texts)


def _call(call: Any, where: str) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise bad_request(f"{where}: expected a call with a function and its name, got {call!r}")
    arguments = read_arguments(function.get("arguments"), f"{where}.function.arguments")
    return {**call, "function": {**function, "arguments": arguments}}


def read_arguments(given: Any, where: str) -> dict[str, Any]:
    """The arguments of an earlier call: an object, or its JSON text. What is empty is an object
    without members: some languages' empty lists and maps are the same. Raises ApiError."""
    if given is None or given == "" or given == []:
        return {}
    found = given
    if isinstance(given, str):
        try:
            found = json.loads(given)
        except (ValueError, RecursionError):
            found = None
        found = {} if given.strip() in ("", "null") else found
    if not isinstance(found, Mapping):
        raise bad_request(f"{where}: expected an object, or its JSON text, got {given!r}")
    return dict(found)


def read_tools(tools: Sequence[Any] | None) -> list[dict[str, Any]] | None:
    """Tools in OpenAI's form, checked; None for none. Raises ApiError."""
    if not tools:
        return None
    names = set[str]()
    for i, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        named = isinstance(function, Mapping) and isinstance(function.get("name"), str)
        if not named or tool.get("type", "function") != "function":
            raise bad_request(f"tools[{i}]: expected a function with a name, got {tool!r}", "tools")
        name = tool["function"]["name"]
        if not name or name in names:
            raise bad_request(f"tools[{i}]: {name!r} is named twice, or empty", "tools")
        names.add(name)
        schema = tool["function"].get("parameters")
        if schema is not None and not isinstance(schema, Mapping):
            raise bad_request(f"tools[{i}]: parameters should be a schema, got {schema!r}", "tools")
    return [dict(tool) for tool in tools]


def read_choice(choice: Any, tools: Sequence[Mapping[str, Any]] | None) -> str:
    """Which calls an answer may or must have: one of TOOL_CHOICES, or a function's name. Raises
    ApiError."""
    if isinstance(choice, Mapping):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else choice.get("name")
        known = [tool["function"]["name"] for tool in tools or ()]
        if not isinstance(name, str) or name not in known:
            raise bad_request(
                f"tool_choice: expected the name of one of the tools, got {name!r}", "tool_choice"
            )
        return name
    if choice is None:
        return "auto" if tools else "none"
    if choice not in TOOL_CHOICES:
        raise bad_request(
            f"tool_choice: expected {', '.join(TOOL_CHOICES)} or a function, got {choice!r}",
            "tool_choice",
        )
    if choice == "required" and not tools:
        raise bad_request("tool_choice: required needs tools", "tool_choice")
    return choice if tools else "none"


def read_format(given: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The schema that a `response_format` asks for, {} for any object, None for any text. Raises
    ApiError."""
    if given is None:
        return None
    kind = given.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        schema = given.get("schema")
        return schema if isinstance(schema, Mapping) else {"type": "object"}
    if kind == "json_schema":
        inner = given.get("json_schema")
        schema = inner.get("schema") if isinstance(inner, Mapping) else given.get("schema")
        if isinstance(schema, Mapping):
            return schema
        raise bad_request("response_format: json_schema needs a schema", "response_format")
    raise bad_request(
        f"response_format: expected text, json_object or json_schema, got {kind!r}",
        "response_format",
    )
