"""Grammars of answers, in llguidance's variant of Lark
(https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....graph.errors import RequestError
from .parser import Think

Special = Callable[[str], int | None]
# Names and schemas of the arguments of functions.
Functions = Sequence[tuple[str, Mapping[str, Any]]]

ANY = "/(?s:.*)/"
# White space between parts of an answer. Bounded, since small models can go on with it for ever.
GAP = r"/[ \t\r\n]{1,8}/?"
_JSON = {
    "json_allow_general_unicode_escapes": True,
    "whitespace_pattern": r"[\x20\x09\x0A\x0D]{1,64}",
}
_META = frozenset("\\.+*?()|[]{}^$/&~#-")


class Rules:
    """Rules of a grammar in the making. What its methods return stands in the bodies of rules.

    special: the id of a control token by its text, None for a text that is none. Control tokens
    occur in no text, so that only their names stand for them; other markers are text."""

    def __init__(self, special: Special) -> None:
        self.special = special
        self._lines: list[str] = []

    def rule(self, body: str, attributes: str = "") -> str:
        """A rule of this body. Returns its name."""
        name = f"r{len(self._lines)}"
        self._lines.append(f"{name}{attributes}: {body}")
        return name

    def lexeme(self, body: str) -> str:
        """A terminal: regular expressions joined by `|`, `&`, `~`. Returns its name."""
        name = f"T{len(self._lines)}"
        self._lines.append(f"{name}: {body}")
        return name

    def lazy(self, pattern: str, outside: str | None = None) -> str:
        """The shortest text that matches a regular expression, and not `outside`."""
        body = f"/{pattern}/" + (f" & ~/{outside}/" if outside else "")
        return self.rule(self.lexeme(body), "[lazy]")

    def literal(self, text: str) -> str:
        """A text, or a control token."""
        token = self.special(text)
        return json.dumps(text, ensure_ascii=False) if token is None else f"<[{token}]>"

    def json(self, schema: Mapping[str, Any]) -> str:
        """JSON that fits a schema. Raises RequestError for what is no schema."""
        if not isinstance(schema, Mapping):
            raise RequestError(f"schema: expected an object, got {schema!r:.40}")
        options = schema.get("x-guidance")
        options = {**_JSON, **(options if isinstance(options, Mapping) else {})}
        full = {**schema, "x-guidance": options}
        try:
            return "%json " + json.dumps(full, allow_nan=False, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError(f"schema: cannot be written as JSON: {error}") from None

    def free(self, *markers: str, not_first: str | None = None) -> str:
        """Any text in which no marker occurs, and that does not begin with `not_first`."""
        body = ANY
        for marker in markers:
            if self.special(marker) is None:
                body += f" & ~/(?s:.*){escaped(marker)}(?s:.*)/"
        if not_first and self.special(not_first) is None:
            body += f" & ~/{_begins(not_first)}/"
        return self.lexeme(body)

    def up_to(self, marker: str, not_first: str | None = None) -> str:
        """Any text up to the first of a marker, and the marker."""
        if self.special(marker) is not None:
            return self.rule(f"{self.free(not_first=not_first)} {self.literal(marker)}")
        avoid = _begins(not_first) if not_first and self.special(not_first) is None else None
        return self.lazy(f"(?s:.*){escaped(marker)}", avoid)

    def text(self, start: str) -> str:
        """The whole grammar with `start` as its beginning."""
        return "\n".join((f"start: {start}", *self._lines)) + "\n"


@dataclass(frozen=True)
class Calls:
    """The rules of calls. begin: the marker of the first call. rest: what follows it, to the end of
    the last call."""

    begin: str
    rest: str


def several(rules: Rules, begin: str, call: str, parallel: bool) -> Calls:
    """Calls that each begin with the same marker. call: what follows it up to the call's end."""
    call = rules.rule(call)
    more = f" ({GAP} {rules.literal(begin)} {call})*" if parallel else ""
    return Calls(begin, rules.rule(call + more))


def call_objects(rules: Rules, functions: Functions, key: str = "arguments", more: str = "") -> str:
    """A call written as `{"name": NAME, "arguments": {...}}`. key: of the arguments. more: what may
    follow them in the object."""
    calls = []
    for name, schema in functions:
        head = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "{key}": '
        calls.append(f"{rules.literal(head)} {rules.json(schema)}")
    return f'{rules.rule(" | ".join(calls))} {more} "}}"'


def answer(
    rules: Rules,
    calls: Calls | None,
    *,
    must: bool,
    schema: Mapping[str, Any] | None,
    think: Think | None,
    prompt_tail: str,
) -> str | None:
    """The grammar of an answer: reasoning, and text, JSON or calls. None for anything.

    must: there is at least one call, and no text beside. schema: of the content."""
    is_open = think is not None and think.is_open(prompt_tail)
    closed = think is not None and prompt_tail.rstrip().endswith(think.close)
    if must and calls:
        body = f"{GAP} {rules.literal(calls.begin)} {calls.rest}"
    elif schema is not None:
        either = f" | {rules.literal(calls.begin)} {calls.rest}" if calls else ""
        body = f"{GAP} ({rules.json(schema)}{either})"
    elif calls:
        tag = None if think is None or is_open or closed else think.open
        return rules.text(_free_or_calls(rules, calls, think, is_open, tag))
    else:
        return None
    if think is None or closed:
        return rules.text(body)
    return rules.text(
        f"{rules.rule(_thought(rules, think, is_open))}{'' if is_open else '?'} {body}"
    )


def _thought(rules: Rules, think: Think, is_open: bool) -> str:
    """Reasoning with its tags."""
    if is_open:
        return rules.up_to(think.close)
    return f"{GAP} {rules.literal(think.open)} {rules.up_to(think.close)}"


def _free_or_calls(
    rules: Rules, calls: Calls, think: Think | None, is_open: bool, tag: str | None
) -> str:
    """Text that may have calls behind it. tag: what begins reasoning that may come first. Texts
    that begin with it are kept apart, since a marker within reasoning begins no call."""
    after = f"{rules.free(calls.begin)} | {rules.up_to(calls.begin)} {calls.rest}"
    if think is None or not (is_open or tag):
        return after
    after = rules.rule(after)
    if is_open:
        return f"{rules.free(think.close)} | {rules.up_to(think.close)} {after}"
    begin = f"{rules.free(calls.begin, not_first=tag)} | "
    begin += f"{rules.up_to(calls.begin, tag)} {calls.rest}"
    if rules.special(think.open) is not None:
        opened = f"{GAP} {rules.literal(think.open)}"
        return (
            f"{begin} | {opened} ({rules.free(think.close)} | {rules.up_to(think.close)} {after})"
        )
    first = rf"[ \t\r\n]*{escaped(think.open)}(?s:.*)"
    if rules.special(think.close) is not None:
        return f"{begin} | {rules.lexeme(f'/{first}/')} ({rules.literal(think.close)} {after})?"
    close = escaped(think.close)
    unclosed = rules.lexeme(f"/{first}/ & ~/(?s:.*){close}(?s:.*)/")
    return f"{begin} | {unclosed} | {rules.lazy(first + close)} {after}"


def escaped(text: str) -> str:
    """A regular expression for a text, to stand between slashes."""
    plain = "".join("\\" + char if char in _META else char for char in text)
    return plain.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def _begins(text: str) -> str:
    return rf"[ \t\r\n]*{escaped(text)}(?s:.*)"


def offered(tools: Sequence[dict[str, Any]] | None, choice: str) -> Functions:
    """Names and schemas of the functions that may be called. Raises RequestError for a schema that
    is not of an object, and for a choice that names no function."""
    if choice == "none" or not tools:
        return []
    functions = [tool["function"] for tool in tools]
    if choice not in ("auto", "required"):
        functions = [function for function in functions if function["name"] == choice]
        if not functions:
            raise RequestError(f"tool_choice: no tool is called {choice!r}")
    return [(function["name"], _parameters(function)) for function in functions]


def _parameters(function: Mapping[str, Any]) -> Mapping[str, Any]:
    schema = function.get("parameters") or {}
    if not isinstance(schema, Mapping):
        raise RequestError(
            f"{function['name']}: expected a schema of parameters, got {schema!r:.40}"
        )
    if schema.get("type", "object") != "object":
        raise RequestError(f"{function['name']}: parameters should be an object")
    return {"type": "object", **schema}
