"""Answers of families that write arguments in tags."""

from __future__ import annotations

import json
from typing import Any

import pytest
from chat_outputs import fed, parser_of, read


def qwen(name: str, *parameters: tuple[str, str]) -> str:
    """A call as Qwen3-Coder writes it."""
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def glm(name: str, *parameters: tuple[str, str]) -> str:
    """A call as GLM 4.5 writes it."""
    inner = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in parameters
    )
    return f"<tool_call>{name}\n{inner}</tool_call>"


def glm47(name: str, *parameters: tuple[str, str]) -> str:
    """A call as GLM 4.7 writes it."""
    return glm(name, *parameters).replace("\n", "")


FAMILIES = {"qwen3-coder": qwen, "glm": glm}
WRITERS = [("qwen3-coder", qwen), ("glm", glm), ("glm", glm47)]
CUT_TAGS = [tag[:n] for tag in ("\\n</parameter>", "</arg_value>") for n in range(len(tag))]
VALUES: list[tuple[str, str, Any]] = [
    ("text", 'a "b" \\ c\td', 'a "b" \\ c\td'),
    ("text", "12", "12"),
    ("text", '{"a": 1}', '{"a": 1}'),
    ("text", "", ""),
    ("text", "über 🎈 </param <arg_ </arg_valu", "über 🎈 </param <arg_ </arg_valu"),
    ("flag", "true", True),
    ("flag", "False", False),
    ("size", "-1.5e3", -1500.0),
    ("size", "7", 7),
    ("size", "much", "much"),
    ("tags", '["a", "</parameter", "b\\n"]', ["a", "</parameter", "b\n"]),
    ("inner", '{"x": {"y": [1, {}]}}', {"x": {"y": [1, {}]}}),
    ("none", "null", None),
    ("none", "None", None),
    ("unknown", "word", "word"),
    ("unknown", "[1, 2]", [1, 2]),
    ("unknown", "NaN", "NaN"),
]


@pytest.mark.parametrize("name, write", WRITERS)
@pytest.mark.parametrize("key, text, value", VALUES)
def test_values(name: str, write: Any, key: str, text: str, value: Any) -> None:
    found = read(name, write("store", (key, text)))
    assert found.arguments == [("store", {key: value})]
    assert found.ended == [0] and not found.content


def test_lines_of_a_text_are_kept() -> None:
    found = read(
        "qwen3-coder", qwen("store", ("text", "\n  def f():\n    <b>\n\n"), ("flag", "true"))
    )
    assert found.arguments == [("store", {"text": "\n  def f():\n    <b>\n\n", "flag": True})]
    found = read("glm", glm("store", ("text", "\n a\n")))
    assert found.arguments == [("store", {"text": "\n a\n"})]


@pytest.mark.parametrize("name, write", WRITERS)
def test_answers(name: str, write: Any) -> None:
    first, second = write("get_weather", ("city", "Ulm"), ("days", "2")), write("now")
    found = read(name, f"<think>\n<tool_call>?\n</think>\n\nLook:\n\n{first}\n{second}\n")
    assert (found.reasoning, found.content) == ("<tool_call>?", "Look:")
    assert found.arguments == [("get_weather", {"city": "Ulm", "days": 2}), ("now", {})]
    assert found.ended == [0, 1]
    assert read(name, first, tools=None).content == first
    assert read(name, write("other", ("a", "1"))).arguments == [("other", {"a": 1})]


@pytest.mark.parametrize("name, write", WRITERS)
def test_a_call_that_is_cut(name: str, write: Any) -> None:
    text = "Hi " + write("store", ("text", "a\nb"), ("tags", "[1, 2]"))
    whole = fed(parser_of(name), [text])
    for cut in range(len(text)):
        found = fed(parser_of(name), text[:cut])
        if found.calls:
            given = found.calls[0][1]
            # A tag that is cut is part of the value.
            assert any(whole.calls[0][1].startswith(given.removesuffix(tag)) for tag in CUT_TAGS)
            assert found.calls[0][0] == "store"
        else:
            assert found.content == text[:cut]


@pytest.mark.parametrize(
    "name, text",
    [
        ("qwen3-coder", "<tool_call>\nno function</tool_call>"),
        ("qwen3-coder", "a <function= x> b"),
        ("qwen3-coder", "<tool_call><function>\n</tool_call>"),
        ("glm", "<tool_call>two words</tool_call>"),
        ("glm", "<tool_call></tool_call>"),
        ("glm", "<tool_call>name"),
    ],
)
def test_what_is_no_call_is_text(name: str, text: str) -> None:
    assert read(name, text).content == text
    assert not read(name, text).calls


def test_tags_that_are_missing() -> None:
    inner = "<function=store>\n<parameter=text>\nx\n</parameter>\n</function>"
    for text in (inner, inner + "\n</tool_call>", f"<tool_call>{inner}\n", f"<tool_call>{inner} y"):
        found = read("qwen3-coder", text)
        assert found.arguments == [("store", {"text": "x"})] and found.ended == [0]
        assert found.content == ("y" if text.endswith("y") else "")
    found = read("qwen3-coder", f"<tool_call>{inner}\n{inner}</tool_call>\n{qwen('now')}")
    assert [name for name, _ in found.calls] == ["store", "store", "now"]


def test_texts_stream_as_they_come() -> None:
    parser = parser_of("qwen3-coder")
    parser.feed('<tool_call>\n<function=store>\n<parameter=text>\nthe "')
    (delta,) = parser.feed("first\n")
    assert json.loads(f'"{delta.text}"') == "first"
