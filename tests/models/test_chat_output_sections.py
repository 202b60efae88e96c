"""Calls in sections: Kimi K2 and DeepSeek."""

from __future__ import annotations

import pytest
from chat_outputs import read
from riverrun.models.chat.output import format_for, formats
from riverrun.models.chat.output.families import deepseek, kimi

K, D = kimi.MARKS, deepseek.MARKS
CITY = '{"city": "<U}\\"lm", "days": {"a": [1, {}]}, "ü": "🎈"}'


def section(name: str, *calls: str, form: str = "") -> str:
    """A section with calls of `get_weather` and others."""
    marks = D if name == "deepseek" else K
    texts = []
    for i, arguments in enumerate(calls):
        head = f"get_weather{marks.separator}"
        if name == "kimi":
            head = f"functions.get_weather:{i}{marks.separator}"
        elif form:
            head, arguments = f"function{marks.separator}get_weather{form}", f"{arguments}\n```"
        texts.append(f"{marks.call}{head}{arguments}{marks.call_end}")
    return marks.begin + "\n".join(texts) + marks.end


@pytest.mark.parametrize("form", ["", "\n```json\n"])
@pytest.mark.parametrize("name", ["kimi", "deepseek"])
def test_reasoning_text_and_calls(name: str, form: str) -> None:
    calls = section(name, CITY, "{}", form=form)
    found = read(name, f"<think>Hm.</think>\n\nLook:\n{calls}")
    assert (found.reasoning, found.content) == ("Hm.", "Look:")
    assert found.calls == [("get_weather", CITY), ("get_weather", "{}")]
    assert found.ended == [0, 1]
    opened = read(name, f"Hm.</think>{calls} x", prompt_tail="<think>\n")
    assert (opened.reasoning, len(opened.calls)) == ("Hm.", 2)
    unread = read(name, calls, tools=None)
    assert unread.content == calls and not unread.calls


def test_calls_of_deepseek_as_v3_1_writes_them() -> None:
    """Next to each other, behind reasoning that the prompt has opened, or closed."""
    calls = section("deepseek", CITY, "{}").replace("\n", "")
    for tail, thought in (("<think>", "Hm."), ("<think></think>", "")):
        text = f"{thought}</think>Look." if thought else "Look."
        found = read("deepseek", text + calls, prompt_tail=f"<｜Assistant｜>{tail}")
        assert (found.reasoning, found.content) == (thought, "Look.")
        assert found.calls == [("get_weather", CITY), ("get_weather", "{}")]


@pytest.mark.parametrize("name", ["kimi", "deepseek"])
def test_marks_that_are_missing(name: str) -> None:
    marks = formats()[name]().parser(tools=[{}]).marks  # type: ignore[attr-defined]
    text = section(name, CITY)
    bare = text.removeprefix(marks.begin).removesuffix(marks.end)
    for odd in (bare, bare.removesuffix(marks.call_end), text.replace(marks.call_end, "")):
        found = read(name, odd)
        assert found.calls == [("get_weather", CITY)] and not found.content and found.ended == [0]
    cut = read(name, text[: text.index("lm") + 1])
    assert cut.calls[0][0] == "get_weather" and not cut.ended and CITY.startswith(cut.calls[0][1])
    broken = read(name, text.replace(CITY, '{"a": [1') + "x")
    assert broken.calls == [("get_weather", '{"a": [1')] and broken.content == "x"


@pytest.mark.parametrize(
    "name, text",
    [
        ("kimi", K.begin + K.end),
        ("kimi", f"{K.begin}nothing{K.end}"),
        ("kimi", f"{K.begin}{K.call}:0{K.separator}{{}}"),
        ("kimi", f"{K.begin}{K.call}{'f' * 300}{K.separator}{{}}"),
        ("kimi", f"{K.call}functions.f:0{K.call_end}{{}}"),
        ("kimi", "a <|tool_call b <|"),
        ("kimi", K.begin + K.call + "functions.f"),
        ("deepseek", D.begin + D.end),
        ("deepseek", f"{D.call}{D.separator}{{}}"),
        ("deepseek", f"{D.call}function{D.separator}f"),
        ("deepseek", "a <｜tool▁call b"),
    ],
)
def test_what_is_no_call_is_text(name: str, text: str) -> None:
    found = read(name, text)
    assert found.content == text and not found.calls


def test_a_call_before_what_is_none() -> None:
    found = read("kimi", section("kimi", CITY).removesuffix(K.end) + K.call + "x" + K.end)
    assert found.calls == [("get_weather", CITY)] and found.content == K.call + "x" + K.end
    assert read("kimi", f"{K.call}never.heard:12{K.separator}{{}}").calls == [("never.heard", "{}")]


def test_templates_of_the_families() -> None:
    assert format_for(f"{K.begin}{K.call}{K.separator}", []).name == "kimi"
    assert format_for(f"{D.begin}{D.call}{D.separator}", []).name == "deepseek"
