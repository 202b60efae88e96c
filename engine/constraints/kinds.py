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
from .grammar import GrammarConstraint
from .library import MAX_TEXT, llguidance, on_deep_stack, shorten
from .vocabulary import vocabulary_of

Source = str | Mapping[str, Any] | bool | None

# A bound, since small models can go on with white space between two values for ever.
_WHITESPACE = r"[\x20\x09\x0A\x0D]{1,64}"
# Legality is then a matter of text alone. Otherwise text that must follow is masked to one way of
# cutting it into tokens, so that masks and checks of drafts would differ.
_OPTIONS = '\n%llguidance {"no_forcing": true}'


def compile_constraint(tokenizer: Tokenizer, kind: str, source: Source = None) -> Constraint:
    """A constraint at its start.

    kind       source
    json_schema  a schema as a mapping or as JSON text. White space inside the value is free, up
                 to 64 characters in a row, unless the schema's "x-guidance" says otherwise
    json_object  None: any JSON object
    regex        a regular expression in the syntax of Rust's regex crate that the whole text must
                 match; no look-around, no word boundaries
    grammar      llguidance's variant of Lark, or GBNF, told by rules of the form `name ::= ...`

    Raises RequestError for an unknown kind, a source that cannot be parsed, is too large or asks
    for what is not supported, and where llguidance is missing."""
    if kind not in KINDS:
        raise RequestError(f"constraint: expected one of {', '.join(KINDS)}, got {kind!r}")
    lark = KINDS[kind](source)
    if len(lark) > MAX_TEXT:
        raise RequestError(f"{kind}: expected at most {MAX_TEXT} characters, got {len(lark)}")
    vocabulary = vocabulary_of(tokenizer)
    library = llguidance()

    def build() -> Any:
        limits = library.LLParserLimits(verbose_errors=False)
        return library.LLMatcher(
            vocabulary.library_tokenizer, lark + _OPTIONS, log_level=0, limits=limits
        )

    try:
        matcher = on_deep_stack(build)
    except BaseException as error:
        # A panic in the library comes as a BaseException of a class that it does not export.
        if type(error).__name__ != "PanicException":
            raise
        raise RequestError(f"{kind}: {shorten(str(error))}") from None
    if matcher.is_error():
        raise RequestError(f"{kind}: {_reason(kind, matcher.get_error())}")
    constraint = GrammarConstraint(vocabulary, matcher)
    # Finds what has no beginning, or one that is too much work, before anything is generated.
    constraint.mask(np.zeros(vocabulary.n_vocab, np.float32))
    return constraint


def _json_schema(source: Source) -> str:
    schema = source
    if isinstance(source, str):
        _check_text("json_schema", source)
        try:
            schema = json.loads(source)
        except RecursionError:
            raise RequestError("json_schema: nested too deeply") from None
        except ValueError as error:
            raise RequestError(f"json_schema: not JSON: {error}") from None
    if schema is True:
        schema = {}
    if not isinstance(schema, Mapping):
        raise RequestError(
            f"json_schema: expected an object, got {type(schema).__name__} {str(schema)[:40]!r}"
        )
    options = schema.get("x-guidance", {})
    if isinstance(options, Mapping) and "whitespace_flexible" not in options:
        options = {"whitespace_pattern": _WHITESPACE} | dict(options)
    try:
        full = dict(schema) | {"x-guidance": options}
        return "start: %json " + json.dumps(full, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"json_schema: cannot be written as JSON: {error}") from None


def _json_object(source: Source) -> str:
    if source is not None:
        raise RequestError("json_object: takes no source; give a schema as json_schema")
    return _json_schema({"type": "object"})


def _regex(source: Source) -> str:
    text = _check_text("regex", source)
    return f"start: /{llguidance().regex_to_lark(text)}/" if text else 'start: ""'


def _grammar(source: Source) -> str:
    text = _check_text("grammar", source)
    return gbnf_to_lark(text) if is_gbnf(text) else text


KINDS: dict[str, Callable[[Source], str]] = {
    "json_schema": _json_schema,
    "json_object": _json_object,
    "regex": _regex,
    "grammar": _grammar,
}


def _check_text(kind: str, source: Source) -> str:
    if not isinstance(source, str):
        raise RequestError(f"{kind}: expected a str, got {type(source).__name__}")
    if len(source) > MAX_TEXT:
        raise RequestError(f"{kind}: expected at most {MAX_TEXT} characters, got {len(source)}")
    try:
        source.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{kind}: expected valid Unicode, got the lone surrogate {source[error.start]!r} "
            f"at {error.start}"
        ) from None
    return source


def _reason(kind: str, message: str) -> str:
    """The library's message; places in the text only where the text is the caller's own."""
    if kind != "grammar":
        message = re.sub(r"^(?:at )?\d+\(\d+\): (?:failed to compile JSON schema: )?", "", message)
        message = message.replace('failed to parse "%json": ', "")
    return shorten(message)
