"""Answers of LFM2: calls as in Python."""

from __future__ import annotations

import ast
import random
from typing import Any

import pytest
from chat_outputs import fed, parser_of, read
from riverrun.models.chat.output import format_for

BEGIN, END = "<|tool_call_start|>", "<|tool_call_end|>"


def arguments(written: str) -> Any:
    """The arguments of a call whose argument `a` is written so."""
    found = read("lfm2", f"{BEGIN}[f(a={written})]{END}")
    assert not found.content and found.ended == [0]
    ((_, values),) = found.arguments
    return values["a"]


def test_reasoning_text_and_calls() -> None:
    text = f'<think>\nf(x)?</think>Look:\n{BEGIN}[f(a="x", b=1), g(), A.b_c-d( c = 2 )]{END}\n'
    found = read("lfm2", text)
    assert (found.reasoning, found.content) == ("f(x)?", "Look:")
    assert found.calls == [("f", '{"a": "x", "b": 1}'), ("g", "{}"), ("A.b_c-d", '{"c": 2}')]
    assert found.ended == [0, 1, 2]
    assert read("lfm2", f"{BEGIN}[g()]{END}", tools=None).content == f"{BEGIN}[g()]{END}"
    assert read("lfm2", f"{BEGIN}[g()]").calls == [("g", "{}")]


@pytest.mark.parametrize(
    "written",
    [
        "[1, {'k': None}, [], {}, ['x', [True]]]",
        "(1, 2,)",
        "{1: 2, None: 'x'}",
        "0x10", "1_000", "-1.5e3", ".5", "+3", "True", "None",
        r"'\x41\u00fc\U0001F388\n\t\\ \'\"'",
        "r'\\d\\n'",
        '"""x"y\n"""',
        "'<|tool_call'",
        "'a, b) c] {d: e}'",
        "''",
        "'🎈ü'",
    ],
)  # fmt: skip
def test_literals_are_json(written: str) -> None:
    want = ast.literal_eval(written)
    if isinstance(want, dict):
        want = {{None: "null", 1: "1"}.get(key, key): value for key, value in want.items()}
    assert arguments(written) == (list(want) if isinstance(want, tuple) else want)


@pytest.mark.parametrize(
    "written, want",
    [
        ("true", True),
        ("null", None),
        ("'it's'", "it's"),
        ("{1, 2}", [1, 2]),
        ("NaN", "NaN"),
        ("1e999", "1e999"),
        ("today(1, 'x')", "today(1, 'x')"),
        (r'"\ud83c\udf88"', "🎈"),
        ('"two\nlines"', "two\nlines"),
    ],
)
def test_what_is_no_literal(written: str, want: Any) -> None:
    assert arguments(written) == want


def value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(7 if depth < 3 else 5)
    if kind < 2:
        return "".join(rng.choice("ab'\"\\\n\t ,)]}:=<ü🎈") for _ in range(rng.randrange(12)))
    if kind == 5:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 6:
        return {f"k{i}": value(rng, depth + 1) for i in range(rng.randrange(4))}
    return rng.choice([None, True, False, 3, -2.5, 10**20])


@pytest.mark.parametrize("seed", range(0, 300, 50))
def test_values_as_python_writes_them(seed: int) -> None:
    for i in range(seed, seed + 50):
        want = {"a": value(random.Random(i)), "b": value(random.Random(-i - 1))}
        text = f"{BEGIN}[f(a={want['a']!r}, b={want['b']!r})]{END}"
        found = fed(parser_of("lfm2"), text)
        # A quote that ends no value is read as an apostrophe, in either way of quoting.
        assert found.arguments == [("f", want)], text
        for cut in range(0, text.index(END), 7):
            part = fed(parser_of("lfm2"), [text[:cut]])
            assert part.content == "" or not part.calls


@pytest.mark.parametrize(
    "text",
    [
        f"{BEGIN}nothing{END}",
        f"{BEGIN}[f(1)]{END}",
        f"{BEGIN}[link text](url){END}",
        f"{BEGIN}[f(a",
        f"{BEGIN}[f",
        "Use [Wikipedia](https://www.wikipedia.org) <|tool_",
        "[f(a=1)]",
    ],
)
def test_what_is_no_call_is_text(text: str) -> None:
    found = read("lfm2", text)
    assert found.content == text and not found.calls


def test_calls_that_are_broken() -> None:
    for written, kept in (("'x]", '{"a": "x]'), ("1", '{"a": 1'), ("[1, ", '{"a": [1, ')):
        found = read("lfm2", f"{BEGIN}[f(a={written}{END} so")
        assert found.calls == [("f", kept)] and found.content == "so"
    found = read("lfm2", f"{BEGIN}[f(a='x")
    assert found.calls == [("f", '{"a": "x')] and not found.ended
    deep = fed(parser_of("lfm2"), f"{BEGIN}[f(a={'[' * 5000}{']' * 5000})]{END}")
    assert len(deep.calls) == 1 and deep.ended == [0]


def test_calls_as_json() -> None:
    call = '{"name": "f", "arguments": {"a": [1]}}'
    for text in (f"[{call}, {call}]", f"[{call}]", call):
        found = read("lfm2", f"{BEGIN}{text}{END}x")
        assert found.calls == [("f", '{"a": [1]}')] * text.count("name")
        assert found.content == "x"


def test_templates_of_the_family() -> None:
    for template in (
        f"{BEGIN}[{{{{ call }}}}]{END}",
        "List of tools: <|tool_list_start|>[",
        '"List of tools: ["',
    ):
        assert format_for(template, []).name == "lfm2"
