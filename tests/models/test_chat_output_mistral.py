"""Answers of Mistral's models: calls as lists of objects, and as names and arguments."""

from __future__ import annotations

import re

import pytest
from chat_outputs import TOOLS, parser_of, read
from riverrun.models.chat.output import CallStart, format_for

BEGIN, ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
CITY = '{"city": "[ARGS]\\"]{", "days": {"a": [1, {}]}, "ü": "🎈"}'
# Two calls, of `get_weather` with CITY and of `now`, in all ways in which they are written.
WAYS = {
    "list": f'{BEGIN}[{{"name": "get_weather", "arguments": {CITY}, "id": "aB3dE6gH9"}}, '
    '{"name": "now", "arguments": {}}]',
    "list-with-space": f'{BEGIN} [{{"name": "get_weather", "arguments": {CITY}}},\n'
    '{"name": "now", "arguments": {}} ]',
    "objects": f'{BEGIN}{{"name": "get_weather", "arguments": {CITY}}}'
    f'{BEGIN}{{"name": "now", "arguments": {{}}}}',
    "named": f"{BEGIN}get_weather{ARGS}{CITY}{BEGIN}now{ARGS}{{}}",
    "named-apart": f"{BEGIN} get_weather {ARGS} {CITY}\n{BEGIN}now{ARGS}\n{{}}",
    "with-ids": f"{BEGIN}get_weather{ID}aB3dE6gH9{ARGS}{CITY}{BEGIN}now{ID}123456789{ARGS}{{}}",
    "without-marks": f"{BEGIN}get_weather{CITY}{BEGIN}now{{}}",
}
NAMES = ("mistral", "mistral-list")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_text_and_calls(name: str, way: str) -> None:
    found = read(name, f"Look: [TOOL_\n\n{WAYS[way]}")
    assert found.content == "Look: [TOOL_"
    assert found.calls == [("get_weather", CITY), ("now", "{}")]
    assert found.ended == [0, 1]
    behind = read(name, f"{WAYS[way]} and so on")
    assert (len(behind.calls), behind.content) == (2, "and so on")
    unread = read(name, WAYS[way], tools=None)
    assert unread.content == WAYS[way] and not unread.calls


@pytest.mark.parametrize("way", WAYS)
def test_reasoning(way: str) -> None:
    found = read("mistral", f"[THINK]Hm, {BEGIN}now{ARGS}{{}}?[/THINK]Look:{WAYS[way]}")
    assert found.reasoning == f"Hm, {BEGIN}now{ARGS}{{}}?"
    assert (found.content, len(found.calls)) == ("Look:", 2)
    opened = read("mistral", f"Hm.[/THINK]{WAYS[way]}", prompt_tail="[/INST][THINK]")
    assert (opened.reasoning, len(opened.calls)) == ("Hm.", 2)
    assert read("mistral", "a", prompt_tail="[THINK]Thus.[/THINK][/SYSTEM_PROMPT]").content == "a"


@pytest.mark.parametrize("way", WAYS)
def test_ids_are_those_that_templates_take(way: str) -> None:
    text = WAYS[way]
    ids = list[str]()
    for _ in range(2):
        deltas = parser_of("mistral").feed(text)
        ids += [delta.id for delta in deltas if isinstance(delta, CallStart)]
    assert len(ids) == 4 and all(re.fullmatch("[a-zA-Z0-9]{9}", id) for id in ids)
    if way == "with-ids":
        assert ids == ["aB3dE6gH9", "123456789"] * 2
    else:
        assert len(set(ids)) == 4
    odd = parser_of("mistral").feed(f"{BEGIN}now{ID}call-1{ARGS}{{}}")
    assert isinstance(odd[0], CallStart) and len(odd[0].id) == 9


@pytest.mark.parametrize(
    "text, calls, content",
    [
        (f'{BEGIN}get_weather{ARGS}{{"city": "U', [("get_weather", '{"city": "U')], ""),
        (f'{BEGIN}[{{"name": "now", "arguments": {{"a', [("now", '{"a')], ""),
        (f'{BEGIN}[{{"name": "now"}}', [("now", "{}")], ""),
        (f'{BEGIN}[{{"name": "now"}}, 12]', [("now", "{}")], ", 12]"),
        (f'{BEGIN}[{{"arguments": {{"a": 1}}, "name": "f"}}]x', [("f", '{"a": 1}')], "x"),
        (f"{BEGIN}now{ARGS}", [("now", "")], ""),
        (f"{BEGIN}now{ARGS}nothing at all", [("now", "nothing")], "at all"),
        (f"{BEGIN}never.heard-of{ARGS}[1]", [("never.heard-of", "[1]")], ""),
    ],
)
def test_calls_that_are_odd(text: str, calls: list[tuple[str, str]], content: str) -> None:
    found = read("mistral", text)
    assert (found.calls, found.content) == (calls, content)


@pytest.mark.parametrize(
    "text",
    [
        BEGIN,
        f"{BEGIN}[]",
        f"{BEGIN}[1, 2]",
        f'{BEGIN}[{{"arguments": {{}}}}]',
        f"{BEGIN}{ARGS}{{}}",
        f"{BEGIN}just words that name nothing",
        f"{BEGIN}just words {{}}",
        f"{BEGIN}{'f' * 300}{ARGS}{{}}",
        f"{BEGIN}now{ID}12345678",
        f"a {BEGIN}{BEGIN} b",
        "a [TOOL_CALLS b [ARGS]",
    ],
)
def test_what_is_no_call_is_text(text: str) -> None:
    for name in NAMES:
        found = read(name, text)
        assert found.content == text and not found.calls


def test_arguments_stream() -> None:
    parser = parser_of("mistral", tools=TOOLS)
    assert parser.feed(f"{BEGIN}now{ID}abc") == []
    assert parser.feed(f"defghi{ARGS}") == [CallStart(0, "now")]
    assert "".join(getattr(d, "text", "") for d in parser.feed('{"a": ')) == '{"a": '


def test_templates_of_the_family() -> None:
    assert format_for("'[TOOL_CALLS]' + name + '[ARGS]'", []).name == "mistral"
    assert format_for("'[TOOL_CALLS]' + name + '[CALL_ID]' + id + '[ARGS]'", []).name == "mistral"
    assert format_for("'[TOOL_CALLS]['", []).name == "mistral-list"
    assert format_for("'[TOOL_CALLS]['", []).think is None
    assert format_for("'[TOOL_CALLS]' '[ARGS]'", ["[THINK]"]).think is not None
