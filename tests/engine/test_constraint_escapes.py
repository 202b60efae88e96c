r"""JSON strings may write characters as escapes: \uXXXX in free strings and additional names."""

from __future__ import annotations

import json
from typing import Any

import pytest
from constrained import tokenizer_of, tokens_of
from riverrun.engine.constraints import compile_constraint

TEXT: dict[str, Any] = {"type": "string"}
ESCAPES = [r"\u00e9", r"\u00E9", r"\u4e2d", r"\ud83d\ude00", r"\u0041", r"\u0000", r"\n", r"\""]


def accepts(schema: Any, text: str) -> bool:
    """Whether a text, written byte by byte, is one that the schema allows, from start to end."""
    tokenizer = tokenizer_of("bpe")
    tokens = [*tokens_of(tokenizer, text), min(tokenizer.eog_ids)]
    return compile_constraint(tokenizer, "json_schema", schema).validate(tokens) == len(tokens)


@pytest.mark.parametrize("escape", ESCAPES)
def test_free_strings_and_names_take_every_escape(escape: str) -> None:
    for schema in (TEXT, True, TEXT | {"maxLength": 1}, TEXT | {"minLength": 1}):
        assert accepts(schema, f'"{escape}"')
    assert accepts(True, json.dumps({json.loads(f'"{escape}"'): 1}))
    assert accepts({"type": "object"}, f'{{"{escape}": ["{escape}x"]}}')
    assert accepts({"type": "array", "items": TEXT}, f'["{escape}", "a{escape}b"]')
    deep = {"type": "object", "properties": {"a": TEXT}, "additionalProperties": False}
    assert accepts(deep, f'{{"a": "{escape}"}}')


def test_an_escape_counts_as_the_one_character_that_it_is() -> None:
    for escape in ESCAPES:
        assert accepts(TEXT | {"maxLength": 2}, f'"x{escape}"')
        assert not accepts(TEXT | {"maxLength": 2}, f'"xy{escape}"')
        assert not accepts(TEXT | {"minLength": 2}, f'"{escape}"')


@pytest.mark.parametrize("text", [r"\ud83d", r"\ude00\ud83d", r"\u00e", r"\u00eg", r"\x41", r"\'"])
def test_what_json_does_not_allow_stays_illegal(text: str) -> None:
    assert not accepts(TEXT, f'"{text}"')


FIXED: list[tuple[Any, str, str]] = [
    ({"const": "é"}, '"é"', r'"\u00e9"'),
    ({"enum": ["é", "b"]}, '"é"', r'"\u00e9"'),
    (TEXT | {"pattern": "^[a-zé]$"}, '"é"', r'"\u00e9"'),
    (TEXT | {"pattern": "^[a-z]$"}, '"a"', r'"\u0061"'),
    (TEXT | {"format": "date"}, '"2024-02-29"', r'"\u0032024-02-29"'),
    ({"properties": {"é": {}}, "additionalProperties": False}, '{"é":1}', r'{"\u00e9":1}'),
    ({"properties": {"a": {}}, "required": ["a"], "type": "object"}, '{"a":1}', r'{"\u0061":1}'),
]


@pytest.mark.parametrize(("schema", "plain", "escaped"), FIXED)
def test_what_the_schema_spells_is_written_as_it_is(schema: Any, plain: str, escaped: str) -> None:
    assert json.loads(plain) == json.loads(escaped)
    assert accepts(schema, plain) and not accepts(schema, escaped)


def test_what_must_be_escaped_is_escaped_there_too() -> None:
    assert accepts({"const": 'a"\n\x01'}, r'"a\"\n\u0001"')
    assert not accepts({"const": "a\n"}, '"a\n"')


def test_a_schemas_text_may_use_escapes_itself() -> None:
    assert accepts(r'{"const": "\u00e9\ud83d\ude00"}', '"é😀"')


def test_the_schema_may_forbid_escapes() -> None:
    plain = TEXT | {"x-guidance": {"json_allow_general_unicode_escapes": False}}
    assert accepts(plain, '"é"') and not accepts(plain, r'"\u00e9"')
