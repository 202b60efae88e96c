"""Grammars of answers: calls that they allow are read as valid, and wrong ones cannot be begun."""

from __future__ import annotations

from typing import Any

import pytest
from answer_grammars import compiled, grammar, random_answer, takes
from chat_outputs import TOOLS, fed, parser_of, tool
from constrained import tokenizer_of, tokens_of
from riverrun.engine.constraints import compile_constraint
from riverrun.graph.errors import RequestError

pytest.importorskip("llguidance")
FAMILIES = ("hermes", "qwen3-coder", "glm")
OPENED = "<|im_start|>assistant\n<think>\n"


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("choice", ["required", "store", "get_weather"])
@pytest.mark.parametrize("name", FAMILIES)
def test_random_answers_are_calls(name: str, choice: str, seed: int) -> None:
    text = random_answer(compiled(name, choice, "</think>\n\n"), seed)
    read = fed(parser_of(name, prompt_tail="</think>"), [text])
    assert read.calls and not read.content and not read.reasoning, text
    known = {t["function"]["name"]: t["function"]["parameters"] for t in TOOLS}
    for called, arguments in read.arguments:
        assert choice in ("required", called)
        assert set(known[called]["required"]) <= set(arguments) <= set(known[called]["properties"])


HERMES_CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
FREE = [
    "",
    "Hello",
    "a <tool_cal b < <t <<tool_call",
    "x < y\n\n{}",
    "<think>\nno <tool_call> yet",
    "<think>a</think>\n\nb <tool",
    "</think> ü 🎈",
]


@pytest.mark.parametrize("text", FREE)
@pytest.mark.parametrize("tail", ["", OPENED])
@pytest.mark.parametrize("name", FAMILIES)
def test_auto_allows_any_text(name: str, tail: str, text: str) -> None:
    assert takes(compiled(name, tail=tail), text) == text + "END"


@pytest.mark.parametrize(
    "text, taken",
    [
        (HERMES_CALL, HERMES_CALL + "END"),
        (f"Well.\n\n{HERMES_CALL}\n{HERMES_CALL}", f"Well.\n\n{HERMES_CALL}\n{HERMES_CALL}END"),
        (f"<think>\n<tool_call>?</think>\n{HERMES_CALL}",) * 2,
        ('<tool_call>\n{"name": "never"', '<tool_call>\n{"name": "n'),
        ('a <tool_call>{"name": "get_weather", "arguments": {"town"',
         'a <tool_call>{"name": "get_weather", "arguments": {"'),
        ("<think>a</think><tool_call>x", "<think>a</think><tool_call>"),
        (HERMES_CALL + " and", HERMES_CALL + " "),
    ],
)  # fmt: skip
def test_auto_holds_calls_to_their_schemas(text: str, taken: str) -> None:
    assert takes(compiled("hermes"), text).removesuffix("END") == taken.removesuffix("END")
    assert takes(compiled("hermes"), text).endswith("END") == (
        text.endswith("</tool_call>") or taken.endswith("END")
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_required_calls_need_a_call(name: str) -> None:
    constraint = compiled(name, "required")
    assert takes(constraint, "") == takes(constraint, "H") == ""
    assert takes(constraint, "<think>hm\n") == "<think>hm\n"
    assert takes(compiled(name, "required", OPENED), "hm\n") == "hm\n"
    assert takes(compiled(name, "required", "<think>\n\n</think>\n\n"), "<think>") == "<t"


def test_one_call_without_parallel() -> None:
    constraint = compiled("hermes", "required", parallel=False)
    assert takes(constraint, f"{HERMES_CALL}\n<tool_call>") == HERMES_CALL
    assert takes(constraint, HERMES_CALL) == HERMES_CALL + "END"


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
SCHEMA["additionalProperties"] = False


@pytest.mark.parametrize("name", [*FAMILIES, "plain"])
def test_content_of_a_schema(name: str) -> None:
    constraint = compiled(name, "none", tools=None, schema=SCHEMA)
    for text in ('{"a": 1}', '<think>so {</think>\n\n{"a": 1}'):
        assert takes(constraint, text) == text + "END"
    assert takes(constraint, "Well") == ""
    assert takes(constraint, '{"b"') == '{"'
    opened = compiled(name, "none", OPENED, tools=None, schema=SCHEMA)
    assert takes(opened, 'so</think>{"a": 1}') == 'so</think>{"a": 1}END'


def test_a_schema_or_a_call() -> None:
    constraint = compiled("hermes", schema=SCHEMA)
    for text in ('{"a": 1}', HERMES_CALL, f"<think>\n</think>{HERMES_CALL}"):
        assert takes(constraint, text) == text + "END"
    assert takes(constraint, "Well") == ""


@pytest.mark.parametrize("name", [*FAMILIES, "plain"])
def test_nothing_to_hold_to(name: str) -> None:
    assert grammar(name, "none") is None
    assert grammar(name, tools=None) is None


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "array"},
        {"properties": {"a": {"type": "string", "pattern": "(?=x)"}}},
        {"properties": {"a": {"type": "strange"}}},
        {"properties": {"a": {"$ref": "#/$defs/none"}}},
        {"properties": {"a": 3}},
        {"properties": {"a": False}, "required": ["a"]},
        {"properties": {"a": {"const": float("nan")}}},
    ],
)
@pytest.mark.parametrize("name", FAMILIES)
def test_schemas_that_cannot_be_held(name: str, parameters: dict[str, Any]) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    with pytest.raises(RequestError):
        compiled(name, "required", tools=tools)
    with pytest.raises(RequestError):
        compiled(name, "auto", tools=tools)


VALUES = {
    "enum": ({"enum": ["a b", "c"]}, ["a b", "c"], ["d", "a"]),
    "mixed": ({"enum": ["a", 1, None]}, ["a", "1", "null"], ["2"]),
    "pattern": ({"type": "string", "pattern": "^[a-c]+/$"}, ["ab/"], ["ab", "/"]),
    "inner pattern": ({"type": "string", "pattern": "b"}, ["abc"], ["ac"]),
    "length": ({"type": "string", "minLength": 2, "maxLength": 3}, ["ü\n"], ["x", "abcd"]),
    "optional": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, ["x", "null", ""], []),
    "choice": ({"anyOf": [{"enum": ["x"]}, {"type": "integer"}]}, ["x", "12"], ["y", "1.5"]),
    "reference": ({"$ref": "#/$defs/n"}, ["3"], ["x", "4"]),
    "inner reference": ({"type": "array", "items": {"$ref": "#/$defs/n"}}, ["[3]"], ["[4]"]),
    "boolean": ({"type": "boolean"}, ["true", "False"], ["1", "yes"]),
    "format": ({"type": "string", "format": "uri"}, ["x"], []),
}


@pytest.mark.parametrize("case", VALUES)
@pytest.mark.parametrize("name", ["qwen3-coder", "glm"])
def test_values_between_tags(name: str, case: str) -> None:
    schema, good, bad = VALUES[case]
    parameters = {"properties": {"a": schema}, "required": ["a"], "$defs": {"n": {"enum": [3]}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    constraint = compiled(name, "required", tools=tools)
    for value in good + bad:
        text = f"<tool_call>f<arg_key>a</arg_key><arg_value>{value}</arg_value></tool_call>"
        if name == "qwen3-coder":
            text = f"<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n"
            text += "</function>\n</tool_call>"
        assert (takes(constraint, text) == text + "END") == (value in good), value


@pytest.mark.parametrize(
    "parameters",
    [
        {"anyOf": [{"required": ["a"]}]},
        {"properties": {}, "required": ["a"]},
        {"properties": {"a": {"type": "string", "not": {"const": "x"}}}},
        {
            "properties": {
                "a": {"anyOf": [{"type": "string"}, {"type": "object", "required": ["b"]}]}
            }
        },
    ],
)
@pytest.mark.parametrize("name", ["qwen3-coder", "glm"])
def test_what_tags_cannot_be_held_to(name: str, parameters: dict[str, Any]) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    with pytest.raises(RequestError):
        compiled(name, "auto", tools=tools)


def test_many_tools() -> None:
    described = {"type": "string", "description": "d" * 900}
    tools = [tool(f"tool_{i}", ["a"], a=described, b=described) for i in range(60)]
    lark = grammar("hermes", tools=tools)
    assert lark is not None and len(lark) > 100_000
    constraint = compile_constraint(tokenizer_of("bpe"), "grammar", lark)
    assert takes(constraint, '<tool_call>{"name": "tool_59", "arguments": {"a": "').endswith('"')


def test_plain_knows_no_calls() -> None:
    with pytest.raises(RequestError, match="tool_choice"):
        grammar("plain", "required")
    assert grammar("plain", "auto") is None


@pytest.mark.parametrize("name", FAMILIES)
def test_markers_that_are_control_tokens(name: str) -> None:
    lark = grammar(name, special=lambda text: 261 if "tool_call" in text else None)
    assert lark is not None and "<[261]>" in lark and "tool_call>" not in lark
    tokenizer = tokenizer_of("bpe")
    marker = tokenizer.token_id("<tool>")
    assert marker is not None
    lark = lark.replace("<[261]>", f"<[{marker}]>")
    constraint = compile_constraint(tokenizer, "grammar", lark)
    assert takes(constraint, "a <tool_call> b") == "a <tool_call> bEND"
    for text in ("a\n", "<think>x<tool_call></think>a"):
        tokens = [*tokens_of(tokenizer, text), marker]
        assert constraint.clone().validate(tokens) == len(tokens)
        end = next(iter(tokenizer.eog_ids))
        assert constraint.clone().validate([*tokens, end]) == len(tokens)


def test_user_defined_tags_are_text() -> None:
    tokenizer = tokenizer_of("bpe")
    tags = [tokenizer.token_id(tag) for tag in ("<think>", "</think>")]
    assert None not in tags
    inside = tokens_of(tokenizer, "<tool_call>?")
    tokens = [tags[0], *inside, tags[1], *tokens_of(tokenizer, HERMES_CALL)]
    for choice in ("auto", "required"):
        assert compiled("hermes", choice).validate(tokens) == len(tokens)
    unclosed = [tags[0], *inside]
    assert compiled("hermes").validate([*unclosed, *tokenizer.eog_ids]) > len(unclosed)
