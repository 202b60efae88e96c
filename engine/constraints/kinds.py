"""The kinds of constraint that a caller can ask for, and their compilation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...graph.errors import RequestError
from ...models.tokenizer import Tokenizer
from .base import Constraint
from .gbnf import gbnf_to_lark, is_gbnf
from .grammar import Compiled, GrammarConstraint
from .library import llguidance, shorten, with_room
from .vocabulary import vocabulary_of

Source = str | Mapping[str, Any] | bool | None

# In characters; the work of compiling can grow with the square of them.
_MAX_SCHEMA, _MAX_GBNF, _MAX_REGEX = 256 << 10, 64 << 10, 8 << 10
# Levels of lists and objects in a schema: a few less than the library reads.
_MAX_DEPTH = 120
_NESTS = (Mapping, list, tuple)
# A bound, since small models can go on with white space between two values for ever.
_WHITESPACE = r"[\x20\x09\x0A\x0D]{1,64}"
# Legality is then a matter of text alone. Otherwise text that must follow is masked to one way of
# cutting it into tokens, so that masks and checks of drafts would differ.
_OPTIONS = '\n%llguidance {"no_forcing": true}'


def compile_constraint(tokenizer: Tokenizer, kind: str, source: Source = None) -> Constraint:
    """A constraint at its start, for any number of generations (`Constraint.start`).

    kind         source
    json_schema  a schema as a mapping or as JSON text. Unless its "x-guidance" says otherwise,
                 white space inside the value is free, up to 64 characters in a row, and free
                 strings and names of additional properties may have any character as an escape of
                 four hexadecimal digits. Names, constants, patterns and formats of the schema are
                 written without escapes but those that JSON demands
    json_object  None: any JSON object
    regex        a regular expression in the syntax of Rust's regex crate that the whole text must
                 match; no look-around, no word boundaries
    grammar      llguidance's variant of Lark, or GBNF, told by rules of the form `name ::= ...`

    Raises RequestError for an unknown kind, a source that cannot be parsed, is too large or asks
    for what is not supported, and where llguidance is missing."""
    _check_kind(kind)
    vocabulary = vocabulary_of(tokenizer)
    library = llguidance()

    def build() -> Any:
        limits = library.LLParserLimits(verbose_errors=False)
        return library.LLMatcher(vocabulary.library_tokenizer, lark, log_level=0, limits=limits)

    def compile() -> Any:
        matcher = with_room(build)
        if matcher.is_error():
            raise RequestError(_reason(kind, source, matcher.get_error()))
        return matcher

    try:
        lark = with_room(lambda: KINDS[kind](source)) + _OPTIONS
        constraint = GrammarConstraint(Compiled(vocabulary, compile))
        # Finds what has no beginning, or too hard a one, before anything is generated.
        constraint.mask(np.zeros(vocabulary.n_vocab, np.float32))
    except RequestError as error:
        raise RequestError(f"{kind}: {error}") from None
    return constraint


def check_source(kind: str, source: Source) -> None:
    """Find what is wrong with a source whatever the vocabulary is, so before a model is loaded.

    kind, source: as for `compile_constraint`, which raises the same errors."""
    _check_kind(kind)
    library = llguidance()
    try:
        fault = with_room(
            lambda: library.LLMatcher.validate_grammar(KINDS[kind](source) + _OPTIONS)
        )
        if fault:
            raise RequestError(_reason(kind, source, fault))
    except RequestError as error:
        raise RequestError(f"{kind}: {error}") from None


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise RequestError(f"constraint: expected one of {', '.join(KINDS)}, got {kind!r}")


def _check_depth(schema: Mapping[str, Any]) -> None:
    """The library's limit, and that of values that hold themselves."""
    level: list[Any] = [schema]
    for _ in range(_MAX_DEPTH):
        inner = [
            x.values() if isinstance(x, Mapping) else x for x in level if isinstance(x, _NESTS)
        ]
        level = [value for values in inner for value in values]
        if not level:
            return
        if len(level) > _MAX_SCHEMA:
            break
    raise RequestError(f"nested too deeply, or too large: at most {_MAX_DEPTH} levels")


def _json_schema(source: Source) -> str:
    schema = source
    if isinstance(source, str):
        _check_text(source, _MAX_SCHEMA)
        try:
            schema = json.loads(source)
        except RecursionError:
            raise RequestError("nested too deeply") from None
        except ValueError as error:
            raise RequestError(f"not JSON: {error}") from None
    if schema is True:
        schema = {}
    if not isinstance(schema, Mapping):
        raise RequestError(f"expected an object, got {type(schema).__name__} {str(schema)[:40]!r}")
    _check_depth(schema)
    options = schema.get("x-guidance", {})
    if isinstance(options, Mapping):
        options = {"json_allow_general_unicode_escapes": True} | dict(options)
        if "whitespace_flexible" not in options:
            options = {"whitespace_pattern": _WHITESPACE} | options
    try:
        full = dict(schema) | {"x-guidance": options}
        text = json.dumps(full, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RequestError(f"cannot be written as JSON: {error}") from None
    return "start: %json " + _check_text(text, _MAX_SCHEMA)


def _json_object(source: Source) -> str:
    if source is not None:
        raise RequestError("takes no source; give a schema as json_schema")
    return _json_schema({"type": "object"})


def _regex(source: Source) -> str:
    text = _check_text(source, _MAX_REGEX)
    return f"start: /{llguidance().regex_to_lark(text)}/" if text else 'start: ""'


def _grammar(source: Source) -> str:
    # Lark may hold schemas: those of all tools that an answer may call.
    text = _check_text(source, _MAX_SCHEMA)
    return gbnf_to_lark(_check_text(text, _MAX_GBNF)) if is_gbnf(text) else text


KINDS: dict[str, Callable[[Source], str]] = {
    "json_schema": _json_schema,
    "json_object": _json_object,
    "regex": _regex,
    "grammar": _grammar,
}


def _check_text(source: Source, longest: int) -> str:
    if not isinstance(source, str):
        raise RequestError(f"expected a str, got {type(source).__name__}")
    if len(source) > longest:
        raise RequestError(f"expected at most {longest} characters, got {len(source)}")
    try:
        source.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"expected valid Unicode, got the lone surrogate {source[error.start]!r} "
            f"at {error.start}"
        ) from None
    return source


def _reason(kind: str, source: Source, message: str) -> str:
    """The library's message; places in the text only where the text is the caller's own."""
    if kind != "grammar" or is_gbnf(str(source)):
        message = re.sub(r"^(?:at )?\d+\(\d+\): (?:failed to compile JSON schema: )?", "", message)
        message = message.replace('failed to parse "%json": ', "")
    return shorten(message)
