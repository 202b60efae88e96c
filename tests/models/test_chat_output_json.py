"""Answers of families that write calls as JSON, and of those without calls."""

from __future__ import annotations

import pytest
from chat_outputs import TOOLS, fed, parser_of, read
from riverrun.models.chat.output import CallArguments, CallStart, Delta

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Ulm"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def test_reasoning_text_and_calls() -> None:
    text = f"<think>\nHm, <tool_call>?\n</think>\n\nLook:\n\n{CALL}\n{NOW}\n"
    found = read("hermes", text)
    assert (found.reasoning, found.content) == ("Hm, <tool_call>?", "Look:")
    assert found.arguments == [("get_weather", {"city": "Ulm"}), ("now", {})]
    assert found.ended == [0, 1]
    kept = read("hermes", text, reasoning=False)
    assert kept.content == "<think>\nHm, <tool_call>?\n</think>\n\nLook:" and len(kept.calls) == 2
    unread = read("hermes", text, tools=None)
    assert unread.content == f"Look:\n\n{CALL}\n{NOW}\n" and not unread.calls


@pytest.mark.parametrize(
    "arguments",
    [
        '{"a": "</tool_call>", "b": "\\"}{"}',
        '{"a": [1, [2, {"b": null}]], "c": -1.5e3, "d": true}',
        '{"ü": "🎈 \\u00fc \\\\"}',
        "{\n  \"a\": 1\n}",
        "{}",
    ],
)  # fmt: skip
def test_arguments_are_given_as_written(arguments: str) -> None:
    text = f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
    found = read("hermes", text)
    assert found.calls == [("f", arguments)] and found.arguments and not found.content
    reversed_keys = (
        f'<tool_call>{{"id": [1, "x"], "arguments": {arguments}, "name": "f"}}</tool_call>'
    )
    assert read("hermes", reversed_keys).calls == [("f", arguments)]


@pytest.mark.parametrize(
    "text, arguments, content",
    [
        ('{"name": "f"}', "{}", ""),
        ('{"name": "f", "arguments": null}', "{}", ""),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', '{"a": 1}', ""),
        ('{"name": "f", "parameters": {"a": 1}}', '{"a": 1}', ""),
        ('{"name": "f", "arguments": {"a": 1}', '{"a": 1}', ""),
        ('{"name": "f", "arguments": {"a": 1}}}', '{"a": 1}', "}"),
        ('{"name": "f", "arguments": {"a": [1}', '{"a": [1}', ""),
        ('{"name": "f", "arguments": {a: b}}', "{a: b}", ""),
        ('{"name": "f", "arguments": nothing}', "nothing", ""),
        ('{"name": "f", "arguments": 12', "12", ""),
    ],
)
def test_calls_that_are_odd(text: str, arguments: str, content: str) -> None:
    found = read("hermes", f"<tool_call>{text}</tool_call>\n{NOW}")
    assert found.calls == [("f", arguments), ("now", "{}")]
    assert found.content == content and found.ended == [0, 1]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\nnothing\n</tool_call>",
        '<tool_call>\n{"nam',
        '<tool_call>{"name": 3}</tool_call>',
        '<tool_call>{"arguments": {"a": 1}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        "a <tool_cal b <tool_call",
        "<tool_call><tool_call>",
        " \n white \n",
        "</think> <b>",
        "say <think> aloud </think>",
    ],
)
def test_what_is_no_call_is_text(text: str) -> None:
    found = read("hermes", text)
    assert found.content == text and not found.calls and not found.reasoning


def test_a_call_behind_what_is_none() -> None:
    found = read("hermes", f"<tool_call>\n oh {CALL}")
    assert found.content == "<tool_call>\n oh" and found.arguments == [
        ("get_weather", {"city": "Ulm"})
    ]


def test_calls_that_are_cut_keep_what_they_gave() -> None:
    text = f"Hi {CALL}"
    for cut in range(len(text)):
        found = fed(parser_of("hermes"), text[:cut])
        if found.calls:
            ((name, arguments),) = found.calls
            assert name == "get_weather" and '{"city": "Ulm"}'.startswith(arguments)
            assert found.content == "Hi"
        else:
            assert found.content == text[:cut]


def test_several_objects_in_a_pair_of_tags() -> None:
    one, two = '{"name": "now", "arguments": {}}', '{"name": "f", "arguments": {"a": 1}}'
    found = read("hermes", f"<tool_call>\n{one}\n{two}\n</tool_call> so")
    assert found.calls == [("now", "{}"), ("f", '{"a": 1}')] and found.content == "so"


def test_an_end_tag_that_is_missing() -> None:
    found = read("hermes", CALL.removesuffix("</tool_call>") + NOW)
    assert [name for name, _ in found.calls] == ["get_weather", "now"]
    assert found.ended == [0, 1] and not found.content


@pytest.mark.parametrize("name", ["hermes", "plain", "qwen3-coder", "glm"])
def test_reasoning(name: str) -> None:
    for tail in ("<think>\n", "<|im_start|>assistant\n<think>\nso far I"):
        found = read(name, "so\n\nmuch\n</think>\n\nHi\n", prompt_tail=tail)
        assert (found.reasoning, found.content) == ("so\n\nmuch", "Hi\n")
        kept = read(name, "so\n</think>\n\nHi", prompt_tail=tail, reasoning=False)
        assert (kept.reasoning, kept.content) == ("", "so\n</think>\n\nHi")
    closed = read(name, " Hi", prompt_tail="<think>\n\n</think>\n\n")
    asked = read(name, " Hi", prompt_tail="what is <think>?<|im_end|>\n<|im_start|>assistant\n")
    assert closed.content == asked.content == " Hi"
    assert read(name, "<think>\n\n</think>\n\nHi").content == "Hi"
    endless = read(name, "\n<think>\n so </thin <tool_call>")
    assert (endless.reasoning, endless.content) == ("so </thin <tool_call>", "")


def test_plain_reads_no_calls() -> None:
    assert read("plain", f"x {CALL}\n").content == f"x {CALL}\n"


def joined_text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, CallArguments))


def test_fragments_come_as_they_are_written() -> None:
    parser = parser_of("hermes", tools=TOOLS)
    assert parser.feed('<tool_call>\n{"name": "f", "argu') == [CallStart(0, "f")]
    assert joined_text(parser.feed('ments": {"a')) == '{"a'
    assert joined_text(parser.feed('": "b')) == '": "b'
    assert parser.n_calls == 1
