"""Rules of calls written as in Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....graph.errors import RequestError
from .rules import Rules

_DEFINED = ("$defs", "definitions")
# What does not bind several properties together.
_ROOT = frozenset(
    ("type", "properties", "required", "additionalProperties", "title", "description")
    + ("default", "examples", "strict", "$schema", "$id", "$comment", "x-guidance", *_DEFINED)
)
_WORDS = {"boolean": '("True" | "False" | "true" | "false")', "null": '("None" | "null")'}


def call_with_keywords(rules: Rules, name: str, schema: Mapping[str, Any]) -> str:
    """A rule of a call, `f(a=1, b="x")`: the properties of a schema as arguments in their order,
    all that are required and any others. Values are JSON, besides words such as True in their
    place. An object without properties may have any. Returns the rule's name. Raises RequestError
    for what schemas say of all properties together."""
    properties, required = schema.get("properties") or {}, schema.get("required") or []
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        raise RequestError(f"{name}: properties or required of another type than JSON schema's")
    wrong = [key for key in schema if key not in _ROOT]
    wrong += [key for key in required if key not in properties]
    if wrong:
        raise RequestError(f"{name}: arguments as in Python cannot be held to {wrong[0]!r}")
    begin, end = rules.literal(f"{name}("), '")"'
    if not properties:
        one = rules.rule(f'/[A-Za-z_][A-Za-z0-9_]*/ "=" {rules.json({})}')
        free = schema.get("additionalProperties", True) is not False
        return rules.rule(f"{begin} ({one} (/, ?/ {one})*)? {end}" if free else f"{begin} {end}")
    shared = {key: schema[key] for key in _DEFINED if key in schema}
    # Of the arguments from the last on: what may stand behind another one, and first.
    behind, first = rules.rule('""'), rules.rule('""')
    for key, inner in reversed(list(properties.items())):
        value = _value(rules, inner, shared)
        one = rules.rule(f"{rules.literal(f'{key}=')} {value}")
        begun = f"{one} {behind}"
        needed = key in required
        first = rules.rule(begun if needed else f"{begun} | {first}")
        behind = rules.rule(f"/, ?/ {begun}" if needed else f"(/, ?/ {begun}) | {behind}")
    return rules.rule(f"{begin} {first} {end}")


def _value(rules: Rules, schema: Any, shared: Mapping[str, Any]) -> str:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if isinstance(kind, str) and kind in _WORDS and not {"const", "enum"} & set(schema):
        return _WORDS[kind]
    if schema is True:
        schema = {}
    return rules.json({**schema, **shared} if isinstance(schema, Mapping) else schema)
