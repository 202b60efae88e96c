"""Answers of Llama 3."""

from __future__ import annotations

import json

import pytest
from chat_outputs import parser_of, read, tool
from riverrun.models.chat.output import format_for

CITY = '{"city": "<U}\\"lm", "days": {"a": [1, {}]}, "ü": "🎈"}'


@pytest.mark.parametrize("key", ["parameters", "arguments"])
@pytest.mark.parametrize("before", ["", "\n\n ", "<|python_tag|>"])
def test_an_object_is_a_call(before: str, key: str) -> None:
    for text in (
        f'{{"name": "get_weather", "{key}": {CITY}}}',
        f'{{"type": "function", "name": "never_heard", "{key}": {CITY}}}',
        f'{{"{key}": {CITY}, "name": "get_weather"}}',
        f'{{"name":"get_weather","{key}":{json.dumps(CITY)}}}',
    ):
        found = read("llama3", before + text)
        assert [arguments for _, arguments in found.calls] == [CITY] and found.ended == [0]
        assert not found.content
        assert read("llama3", text, tools=None).content == text


def test_several_calls_and_text_beside() -> None:
    one = '{"name": "now", "parameters": {}}'
    found = read("llama3", f"{one}; {one};{one}\n{one} done")
    assert found.calls == [("now", "{}")] * 4 and found.content == "done"
    found = read("llama3", f"I'll look.\n<|python_tag|>{one}; {one}")
    assert found.calls == [("now", "{}")] * 2 and found.content == "I'll look."
    assert read("llama3", '{"name": "now"}').calls == [("now", "{}")]
    cut = read("llama3", '{"name": "get_weather", "parameters": {"city": "U')
    assert cut.calls == [("get_weather", '{"city": "U')] and not cut.ended


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Bob", "age": 3}',
        '{"answer": {"name": "now", "parameters": {}}}',
        '{"name": "never_heard"}',
        '{"parameters": {"a": 1}}',
        "{",
        '{"na',
        "{not JSON} at all",
        'Hi {"name": "now", "parameters": {}}',
        "a <|python_ta b",
        "<|python_tag|>",
        '<|python_tag|>print("x")\nf.call(1)',
    ],
)
def test_what_is_no_call_is_text(text: str) -> None:
    found = read("llama3", text)
    assert found.content == text and not found.calls


def test_json_that_is_no_call_streams() -> None:
    assert parser_of("llama3").feed('{"answer": "lo')


def test_tools_that_are_called_in_code() -> None:
    found = read("llama3", '<|python_tag|>brave_search.call(query="a \\"b\\" ü", n=1)')
    assert found.arguments == [("brave_search", {"query": 'a "b" ü', "n": 1})]
    assert read("llama3", "<|python_tag|>now()").calls == [("now", "{}")]
    code = 'print("ü")\nbrave = 1\n'
    found = read("llama3", f"<|python_tag|>{code}", tools=[tool("code_interpreter")])
    assert found.arguments == [("code_interpreter", {"code": code})] and found.ended == [0]


def test_templates_of_the_family() -> None:
    template = "<|start_header_id|>ipython<|end_header_id|>" + """{{- '"parameters": ' }}"""
    assert format_for(template, []).name == "llama3"
    assert format_for(template + "<function=", []).name != "llama3"
