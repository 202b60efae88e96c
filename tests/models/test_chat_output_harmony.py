"""Answers in the channels of gpt-oss."""

from __future__ import annotations

import pytest
from chat_outputs import fed, parser_of, read
from riverrun.models.chat.output import format_for

AGAIN = "<|start|>assistant"
HM = f"<|channel|>analysis<|message|>Hm,\n<b>.<|end|>{AGAIN}"
FINAL = "<|channel|>final<|message|>"


def test_channels() -> None:
    found = read("harmony", HM + FINAL + "Hello, <| ü 🎈!\n")
    assert (found.reasoning, found.content) == ("Hm,\n<b>.", "Hello, <| ü 🎈!\n")
    kept = read("harmony", HM + FINAL + "Hello", reasoning=False)
    assert kept.content == "<|channel|>analysis<|message|>Hm,\n<b>.<|end|>Hello"
    assert not kept.reasoning
    assert read("harmony", FINAL + "Hi<|return|>").content == "Hi"


@pytest.mark.parametrize(
    "head",
    [
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.f<|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.f json<|message|>",
        "<|channel|>analysis to=functions.f code<|message|>",
        " to=functions.f<|channel|>commentary json<|message|>",
        " to=functions.f<|channel|>commentary<|message|>",
    ],
)
@pytest.mark.parametrize("end", ["<|call|>", "", "<|end|>", AGAIN + FINAL], ids=repr)
def test_calls(head: str, end: str) -> None:
    arguments = '{"a": {"b": "}<|end|>\\"", "ü": [1, {}]}}'
    for before in ("", HM):
        found = read("harmony", before + head + arguments + end)
        assert found.calls == [("f", arguments)] and found.ended == [0]
        assert not found.content and bool(found.reasoning) == bool(before)
    cut = read("harmony", head + arguments[:-3])
    assert cut.calls == [("f", arguments[:-3])] and not cut.ended


def test_text_beside_calls_and_several_of_them() -> None:
    call = "<|channel|>commentary to=functions.f json<|message|>"
    plan = "<|channel|>commentary<|message|>I'll look.\n<|end|>" + AGAIN
    found = read(
        "harmony", f"{plan}{HM}{call}{{}}<|call|>{AGAIN}{call}<|end|>{AGAIN}{FINAL}\nSo.<|return|>"
    )
    assert found.calls == [("f", "{}"), ("f", "{}")] and found.ended == [0, 1]
    assert (found.reasoning, found.content) == ("Hm,\n<b>.", "I'll look.\n\nSo.")
    twice = read("harmony", HM + HM + plan + plan + FINAL + " x ")
    assert twice.reasoning == "Hm,\n<b>.\n\nHm,\n<b>."
    assert twice.content == "I'll look.\n\nI'll look.\n\nx "


def test_recipients_that_are_no_function_are_named_as_written() -> None:
    text = "<|channel|>commentary to=python <|constrain|>code<|message|>print('x')<|call|>"
    assert read("harmony", text).calls == [("python", "print('x')")]
    behind = read("harmony", "<|channel|>commentary to=functions.f<|message|>{}}<|call|>")
    assert behind.calls == [("f", "{}")] and behind.content == "}"
    unread = read("harmony", text, tools=None)
    assert unread.content == "print('x')" and not unread.calls
    stray = f"<|channel|>commentary to=assistant{HM}<|channel|>commentary to=assistant{FINAL}a"
    assert (read("harmony", stray).reasoning, read("harmony", stray).content) == ("Hm,\n<b>.", "a")


@pytest.mark.parametrize(
    "text",
    [
        "Hello there",
        " to the point",
        "to",
        "\n\nA <|chan and <|end|> more",
        "<|channel|>not the header of a message",
        "<|start|>a b c d<|start|>one two three four",
        "<|channel|>final<|end|>x",
        "<|channel|>" + "long" * 60,
    ],
)
def test_what_is_no_header_is_text(text: str) -> None:
    found = read("harmony", text)
    assert found.content == text and not found.calls and not found.reasoning


@pytest.mark.parametrize("text", ["<|channel|>fin", "<|start|>assis", FINAL[:-2], FINAL])
def test_a_header_that_is_cut_is_no_text(text: str) -> None:
    assert read("harmony", FINAL + "a<|end|>" + text).whole == "a"


@pytest.mark.parametrize(
    "tail, text, reasoning, content",
    [
        (f"x<|end|>{AGAIN}", HM + FINAL + "a", "Hm,\n<b>.", "a"),
        (f"{AGAIN}<|channel|>analysis<|message|>So ", f"on<|end|>{AGAIN}{FINAL}a", "on", "a"),
        (f"{AGAIN}{FINAL}So ", "on", "", "on"),
        ("a long answer that is continued ", "on", "", "on"),
        (f"{AGAIN}<|channel|>analysis", "<|message|>so", "so", ""),
        (f"{AGAIN}{FINAL}So<|end|>", f"{AGAIN}{FINAL}on", "", "on"),
    ],
)
def test_an_answer_goes_on_where_the_prompt_ends(
    tail: str, text: str, reasoning: str, content: str
) -> None:
    found = read("harmony", text, prompt_tail=tail)
    assert (found.reasoning, found.content) == (reasoning, content)


def test_any_number_of_markers() -> None:
    for text in ("<|start|>", "<|channel|>", "<|message|>", "<|call|>", FINAL, HM):
        fed(parser_of("harmony"), [text * 1200])


def test_templates_of_the_family() -> None:
    template = "<|start|>assistant<|channel|>final<|message|>{{ message.content }}<|return|>"
    assert format_for(template, []).name == "harmony"
    assert {"<|channel|>", "<|end|>", "<|constrain|>"} <= set(format_for(template, []).visible)
