"""Calls of Llama 3.1, 3.2 and 3.3: a JSON object as the whole answer, or behind <|python_tag|>."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..formats import OutputFormat, register
from ..json_reading import ARGUMENTS, read_call, read_string, read_value
from ..parser import MarkedParser, Tools
from ..python_reading import read_call as read_python_call
from ..reading import Waiting
from ..rules import GAP, Rules, Special, call_objects, offered

TAG = "<|python_tag|>"
_INTERPRETERS = ("code_interpreter", "python", "ipython")
_KEYS = ("name", "type", "id", *ARGUMENTS)
_BUILTIN = ".call"  # what follows the name of a built-in tool


@register
class Llama3(OutputFormat):
    """`{"name": NAME, "parameters": {...}}`; `<|python_tag|>NAME.call(query="...")` for built-in
    tools, and `<|python_tag|>` before code for an interpreter.

    Source: Meta's page "Llama 3.1: model cards and prompt formats", and the chat templates."""

    name = "llama3"
    visible = (TAG,)
    precedence = 1

    def detects(self, template: str) -> bool:
        """Llama's own templates; those of models made from it have other formats."""
        is_llama = "<|start_header_id|>" in template and "ipython" in template
        return is_llama and '"parameters": ' in template and "<function=" not in template

    def parser(
        self, *, tools: Tools, prompt_tail: str = "", reasoning: bool = True
    ) -> Llama3Parser:
        """See `OutputFormat.parser`."""
        return Llama3Parser(tools)

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
        """See `OutputFormat.grammar`. Where tools are there, an answer that begins with a brace is
        a call."""
        rules, functions = Rules(special), offered(tools, choice)
        if not functions:
            return None if schema is None else rules.text(f"{GAP} {rules.json(schema)}")
        call = call_objects(rules, functions, "parameters")
        more = f' ((";" | "; " | "\\n") {call})*' if parallel else ""
        calls = rules.rule(f"{GAP} {call}{more}")
        if choice != "auto":
            return rules.text(f"{rules.literal(TAG)}? {calls}")
        if schema is not None:
            options = [schema, *(_as_schema(name, inner) for name, inner in functions)]
            return rules.text(f"{GAP} {rules.json({'anyOf': options})}")
        behind = calls
        if any(name in _INTERPRETERS for name, _ in functions):
            behind = rules.rule(f"{calls} | {rules.free()}")
        text = rules.free(TAG, not_first="{")
        return rules.text(f"{text} | {calls} | {rules.up_to(TAG, '{')} {behind}")


class Llama3Parser(MarkedParser):
    """Reads the calls. Several may follow each other, with a semicolon or not."""

    def __init__(self, tools: Tools) -> None:
        super().__init__((TAG,) if tools else ())
        self._names = [tool["function"]["name"] for tool in tools or ()]

    def read(self) -> Waiting[None]:
        """Reads an answer."""
        if self._names and (yield from self.text.comes("{", space=True)):
            yield from self._objects()
            self.part()
        yield from super().read()

    def call(self, marker: str) -> Waiting[bool]:
        """See `MarkedParser.call`."""
        text = self.text
        if (yield from text.comes("{", space=True)):
            return (yield from self._objects())
        interpreter = next((name for name in _INTERPRETERS if name in self._names), None)
        if (yield from read_python_call(self, name_of=self._called)):
            return True
        text.back()
        if interpreter is not None:
            yield from self._code(interpreter)
        return interpreter is not None

    def _objects(self) -> Waiting[bool]:
        """Reads objects that are calls. Returns whether there was one."""
        text, found = self.text, False
        while True:
            text.hold()
            yield from text.take(";" if found else "", space=True)
            is_call = yield from self._call_comes()
            text.back()
            if not is_call:
                return found
            yield from text.take(";" if found else "", space=True)
            yield from read_call(self)
            found = True

    def _call_comes(self) -> Waiting[bool]:
        """Whether a call comes next, reading as much of it as tells so. With the name of no known
        function it needs arguments as well: an answer may be JSON."""
        text, keys = self.text, set[str]()
        mark = "{"
        while (yield from text.take(mark, space=True)):
            key = yield from read_string(text)
            if key not in _KEYS or not (yield from text.take(":", space=True)):
                return False
            keys.add("arguments" if key in ARGUMENTS else key)
            if key == "name":
                name = yield from read_string(text)
                if not name or name in self._names:
                    return bool(name)
            if {"name", "arguments"} <= keys:
                return True
            if key != "name" and not (yield from read_value(text, _dropped)):
                return False
            mark = ","
        return False

    def _called(self, written: str) -> str | None:
        """The name of the function that is called by a name in code, None for none."""
        if written in self._names:
            return written
        return written.removesuffix(_BUILTIN) if written.endswith(_BUILTIN) else None

    def _code(self, name: str) -> Waiting[None]:
        """Reads code for an interpreter, up to the end of the answer."""

        def give(piece: str) -> None:
            self.arguments(json.dumps(piece, ensure_ascii=False)[1:-1])

        self.text.release()
        self.start_call(name)
        self.arguments('{"code": "')
        yield from self.text.until((), give)
        self.arguments('"}')
        self.end_call()


def _as_schema(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a call."""
    properties = {"name": {"const": name}, "parameters": parameters}
    keys = list(properties)
    return {"type": "object", "properties": properties, "required": keys} | {
        "additionalProperties": False
    }


def _dropped(text: str) -> None:
    pass
