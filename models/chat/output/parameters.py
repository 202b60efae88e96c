"""Arguments written between tags, one by one: texts bare, other values as JSON. They are given as
the JSON text of an object while they come in."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from ....graph.errors import RequestError
from .parser import OutputParser, Tools
from .reading import SPACE, Waiting, begun, gathered
from .rules import Rules, escaped

_TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
# How Python writes what JSON has other words for; templates that write values by str() teach them.
_WORDS = {"True": "true", "False": "false", "None": "null"}
# What joins schemas of whole objects, and so cannot be held to one property at a time.
_JOINT = frozenset(
    ("anyOf", "oneOf", "allOf", "not", "if", "then", "else", "patternProperties", "propertyNames")
    + ("dependentRequired", "dependentSchemas", "minProperties", "unevaluatedProperties", "enum")
    + ("const", "maxProperties", "dependencies")
)
# Keywords that leave a schema of texts open: descriptions, and `format`, which describes, too.
_OPEN = frozenset(
    ("type", "title", "description", "default", "examples", "format", "contentMediaType")
    + ("deprecated", "readOnly", "writeOnly", "$comment", "contentEncoding", "nullable")
)
_TEXTUAL = frozenset(("enum", "const", "pattern", "minLength", "maxLength"))


class Schemas:
    """The schemas of tools' parameters, by the names of functions."""

    def __init__(self, tools: Tools) -> None:
        self._known: dict[str, Mapping[str, Any]] = {}
        for tool in tools or ():
            function = tool.get("function", {})
            self._known[function.get("name", "")] = function.get("parameters") or {}

    def types(self, name: str, key: str) -> frozenset[str]:
        """The JSON types that an argument may have; all of them where its schema does not say."""
        root = self._known.get(name, {})
        properties = root.get("properties")
        schema = properties.get(key) if isinstance(properties, Mapping) else None
        return frozenset(types_of(schema, root))


def types_of(schema: Any, root: Mapping[str, Any], depth: int = 0) -> set[str]:
    """The JSON types that a schema names, all of them where it leaves them open."""
    everything = set(_TYPES)
    if not isinstance(schema, Mapping) or depth > 8:
        return everything
    if isinstance(schema.get("$ref"), str):
        return types_of(resolved(schema, root), root, depth + 1)
    kind = schema.get("type")
    if kind is not None:
        return {k for k in ([kind] if isinstance(kind, str) else kind) if k in _TYPES} or everything
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return {_type_of(value) for value in schema["enum"]}
    if "const" in schema:
        return {_type_of(schema["const"])}
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list) and schema[key]:
            return set().union(*(types_of(s, root, depth + 1) for s in schema[key]))
    return everything


def resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """What a reference within the schema of the parameters leads to, None for nothing."""
    found: Any = root
    path = str(schema["$ref"])
    for part in path.removeprefix("#/").split("/") if path.startswith("#/") else ("",):
        part = part.replace("~1", "/").replace("~0", "~")
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _type_of(value: Any) -> str:
    kinds = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array"}
    return kinds.get(type(value), "null" if value is None else "object")


class Arguments:
    """Gives the arguments of one call as they are read.

    types: by the name of an argument (`Schemas.types`)."""

    def __init__(self, parser: OutputParser, schemas: Schemas, name: str) -> None:
        self._parser, self._schemas, self._name = parser, schemas, name
        self._any = False
        parser.start_call(name)

    def read(self, key: str, end: str, newlines: bool = False) -> Waiting[bool]:
        """Read one value up to its end tag. newlines: one at each end belongs to the tags. Returns
        whether the tag came."""
        parser, text = self._parser, self._parser.text
        types = self._schemas.types(self._name, key)
        if newlines:
            yield from text.take("\n")
        separator = ", " if self._any else "{"
        self._any = True
        parser.arguments(f"{separator}{_quoted(key)}: ")
        if types != {"string"}:
            raw, tag = yield from gathered(lambda give: text.until((end,), give))
            if not tag:
                raw = raw[: len(raw) - begun(raw, (end,))]
            if newlines:
                raw = raw.removesuffix("\n")
            parser.arguments(value_text(raw, types) if tag else raw)
            return tag is not None
        parser.arguments('"')
        tag = yield from text.until(("\n" + end, end) if newlines else (end,), self._text)
        if tag:
            parser.arguments('"')
        return tag is not None

    def end(self) -> None:
        """The call is whole."""
        if self._any:
            self._parser.arguments("}")
        self._parser.end_call()

    def _text(self, piece: str) -> None:
        self._parser.arguments(_quoted(piece)[1:-1])


def value_text(raw: str, types: frozenset[str]) -> str:
    """The JSON text of a value of one of some types; that of a text where it is none of them."""
    bare = raw.strip(SPACE)
    word = _WORDS.get(bare, bare)
    try:
        value = json.loads(word, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return _quoted(raw)
    kind = _type_of(value)
    fits = kind in types or (kind == "integer" and "number" in types)
    if "string" in types and (kind == "string" or not fits):
        return _quoted(raw)
    return word


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def parameter_rules(
    rules: Rules,
    function: tuple[str, Mapping[str, Any]],
    head: Callable[[str], str],
    end: str,
    newlines: bool = False,
) -> str:
    """The rules of a function's parameters in their order, those that are not required optional.

    head: the rule of what comes before a value, by the parameter's name. end, newlines: as for
    `Arguments.read`. Raises RequestError for what cannot be held to one parameter at a time."""
    name, schema = function
    if "$ref" in schema:
        inner = resolved(schema, schema)
        if not isinstance(inner, Mapping) or "$ref" in inner:
            raise RequestError(f"{name}: the $ref of the parameters leads to no schema")
        schema = {**schema, **inner}
    properties, required = schema.get("properties", {}), schema.get("required", [])
    wrong = sorted(_JOINT & set(schema))
    if wrong or not isinstance(properties, Mapping) or not isinstance(required, list):
        found = ", ".join(wrong) or "properties or required of another type"
        raise RequestError(f"{name}: parameters in tags cannot be held to {found}")
    missing = [key for key in required if key not in properties]
    if missing:
        raise RequestError(f"{name}: {missing[0]!r} is required and no property")
    values = _Values(rules, schema, end, newlines)
    return " ".join(
        f"({head(key)} {values.rule(inner)}){'' if key in required else '?'}"
        for key, inner in properties.items()
    )


class _Values:
    """Rules of values with their end tags. root: the schema that references are within."""

    def __init__(self, rules: Rules, root: Mapping[str, Any], end: str, newlines: bool) -> None:
        self._rules, self._root, self._end = rules, root, end
        self._tag = ('"\\n" ' if newlines else "") + rules.literal(end)

    def rule(self, schema: Any, depth: int = 0) -> str:
        """The rule of a value of a schema. Raises RequestError for what cannot be held to."""
        schema = {} if schema is True else schema
        if isinstance(schema, Mapping) and "$ref" in schema:
            schema = resolved(schema, self._root)
        if not isinstance(schema, Mapping) or "$ref" in schema or depth > 8:
            raise RequestError(f"schema of a parameter: expected an object, got {schema!r:.40}")
        kinds = schema.get("type", [])
        if not {kinds} <= set(_TYPES) if isinstance(kinds, str) else set(kinds) - set(_TYPES):
            raise RequestError(f"schema of a parameter: unknown type {kinds!r:.40}")
        types = types_of(schema, self._root)
        given = set(schema) - _OPEN
        if "string" not in types:
            shared = {key: self._root[key] for key in ("$defs", "definitions") if key in self._root}
            either = ' | "True" | "False"' if types == {"boolean"} and not given else ""
            return f"({self._rules.json({**shared, **schema})}{either}) {self._tag}"
        if not given:
            return self._rules.up_to(self._end)
        if len(given) == 1 and given <= {"anyOf", "oneOf"}:
            return self._either(schema[given.pop()], depth)
        if given - _TEXTUAL:
            raise RequestError(f"a text between tags cannot be held to {', '.join(sorted(given))}")
        if given & {"enum", "const"}:
            return self._one_of(schema.get("enum", [schema.get("const")]))
        if types != {"string"}:
            raise RequestError(f"a value of several types cannot be held to {', '.join(given)}")
        return self._bounded(schema)

    def _either(self, options: Any, depth: int) -> str:
        if not isinstance(options, list) or not options:
            raise RequestError(f"anyOf: expected schemas, got {options!r:.40}")
        bare = [isinstance(o, Mapping) and not set(o) - _OPEN for o in options]
        texts = ["string" in types_of(o, self._root) for o in options]
        if all(bare):
            return self._rules.up_to(self._end)
        if any(text and is_bare for text, is_bare in zip(texts, bare, strict=True)):
            raise RequestError("a text between tags cannot be told from the other types of anyOf")
        return f"({' | '.join(self.rule(option, depth + 1) for option in options)})"

    def _one_of(self, values: Any) -> str:
        if not isinstance(values, list) or not values:
            raise RequestError(f"enum: expected values, got {values!r:.40}")
        texts = [v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values]
        if any(self._end in text for text in texts):
            raise RequestError(f"enum: a value holds {self._end}")
        return f"({' | '.join(map(_quoted, texts))}) {self._tag}"

    def _bounded(self, schema: Mapping[str, Any]) -> str:
        """A text by its lengths and its pattern."""
        rules, end = self._rules, self._end
        least, most = schema.get("minLength", 0), schema.get("maxLength", "")
        body = f"/(?s:.){{{least},{most}}}/ & ~/(?s:.*){escaped(end[:2])}(?s:.*)/"
        if "pattern" in schema:
            body += f" & /{_pattern(str(schema['pattern']))}/"
        text = rules.lexeme(body)
        if rules.special(end) is not None:
            return f"{text} {self._tag}"
        return rules.rule(rules.lexeme(f"{text} {self._tag}"), "[lazy]")


def _pattern(pattern: str) -> str:
    """The regular expression of whole texts in which a pattern is found."""
    start, stop = pattern.startswith("^"), re.search(r"(?<!\\)\$$", pattern) is not None
    inner = re.sub(r"(?<!\\)/", r"\/", pattern[start : len(pattern) - stop])
    return f"{'' if start else '(?s:.*)'}({inner}){'' if stop else '(?s:.*)'}"
