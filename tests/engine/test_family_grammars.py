"""Grammars of answers in the families whose calls are not JSON in tags."""

from __future__ import annotations

from typing import Any

import pytest
from answer_grammars import compiled, grammar, random_answer, takes
from chat_outputs import TOOLS, fed, parser_of, tool
from constrained import tokenizer_of, tokens_of
from riverrun.engine.constraints import compile_constraint
from riverrun.graph.errors import RequestError
from riverrun.models.chat.output.families import deepseek, kimi

pytest.importorskip("llguidance")
K, D = kimi.MARKS, deepseek.MARKS
HM = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"
# Calls in the ways of each family, with a place for the function's name and one for its city.
CALLS = {
    "harmony": [
        '<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{"city": "CITY"}',
        ' to=functions.NAME<|channel|>commentary json<|message|>{"city": "CITY"}',
    ],
    "llama3": ['{"name": "NAME", "parameters": {"city": "CITY"}}'],
    "lfm2": ['<|tool_call_start|>[NAME(city="CITY")]<|tool_call_end|>'],
    "kimi": [
        f'{K.begin}{K.call}functions.NAME:0{K.separator}{{"city": "CITY"}}{K.call_end}{K.end}'
    ],
    "deepseek": [
        f'{D.begin}{D.call}NAME{D.separator}{{"city": "CITY"}}{D.call_end}{D.end}',
        f"{D.begin}{D.call}function{D.separator}NAME\n```json\n"
        f'{{"city": "CITY"}}\n```{D.call_end}{D.end}',
    ],
    "mistral": [
        '[TOOL_CALLS]NAME[ARGS]{"city": "CITY"}',
        '[TOOL_CALLS]NAME[CALL_ID]aB3dE6gH9[ARGS]{"city": "CITY"}',
    ],
    "mistral-list": [
        '[TOOL_CALLS][{"name": "NAME", "arguments": {"city": "CITY"}}]',
        '[TOOL_CALLS] [{"name": "NAME", "arguments": {"city": "CITY"}, "id": "aB3dE6gH9"}]',
    ],
}
EACH = [(name, call) for name, calls in CALLS.items() for call in calls]
MISTRAL = "[THINK]Hm.[/THINK]"
THOUGHTS = {"harmony": HM, "llama3": "\n\n", "mistral": MISTRAL, "mistral-list": MISTRAL}


def valid(call: str, city: str = "Ulm") -> str:
    return call.replace("NAME", "get_weather").replace("CITY", city)


@pytest.mark.parametrize("name, call", EACH)
def test_calls_are_held_to_names_and_schemas(name: str, call: str) -> None:
    thought = THOUGHTS.get(name, "<think>Hm.</think>")
    for choice in ("auto", "required", "get_weather"):
        constraint = compiled(name, choice)
        for text in (valid(call), thought + valid(call, "ü {}")):
            assert takes(constraint, text) == text + "END"
        begun = call[: call.index("NAME")]
        assert takes(constraint, call.replace("NAME", "gone")) == begun + "g"
        assert takes(constraint, begun + "x") == begun
        wrong = valid(call).replace("city", "town")
        assert takes(constraint, wrong) == wrong[: wrong.index("town")]
    assert takes(compiled(name, "now"), valid(call)) == call[: call.index("NAME")]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("choice", ["required", "store"])
@pytest.mark.parametrize("name", ["llama3", "lfm2", "mistral", "mistral-list"])
def test_random_answers_are_calls(name: str, choice: str, seed: int) -> None:
    tail = {"lfm2": "</think>\n\n", "llama3": ""}.get(name, "[/THINK]")
    text = random_answer(compiled(name, choice, tail), seed)
    read = fed(parser_of(name, prompt_tail=tail), [text])
    assert read.calls and not read.content, text
    known = {t["function"]["name"]: t["function"]["parameters"] for t in TOOLS}
    for called, arguments in read.arguments:
        assert choice in ("required", called)
        assert set(known[called]["required"]) <= set(arguments) <= set(known[called]["properties"])


@pytest.mark.parametrize("name", CALLS)
def test_text_is_free_where_calls_may_come(name: str) -> None:
    begun = FINAL if name == "harmony" else ""
    for text in ("", "Hello", "a <|tool_ <｜ {} [f(a=1)] ü 🎈\n\n"):
        assert takes(compiled(name), begun + text) == begun + text + "END"
        assert takes(compiled(name, "required"), begun + text) in ("", "<|channel|>")
    assert grammar(name, "none") is None and grammar(name, tools=None) is None


@pytest.mark.parametrize("name", CALLS)
def test_content_of_a_schema(name: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    before = HM + FINAL if name == "harmony" else ""
    for options in ({"tools": None}, {}):
        constraint = compiled(name, schema=schema, **options)
        assert takes(constraint, before + '{"a": 1}') == before + '{"a": 1}END'
        assert takes(constraint, before + "Well") == before
        for call in CALLS[name]:
            assert takes(constraint, valid(call)).endswith("END") == (not options)


@pytest.mark.parametrize(
    "name, first, further",
    [
        ("llama3", '{"name": "now", "parameters": {}}', '; {"name": "now", "parameters": {}}'),
        ("lfm2", "<|tool_call_start|>[now()", ", now()]<|tool_call_end|>"),
        (
            "kimi",
            f"{K.begin}{K.call}functions.now:0{K.separator}{{}}{K.call_end}",
            f"{K.call}functions.now:1{K.separator}{{}}{K.call_end}{K.end}",
        ),
        (
            "deepseek",
            f"{D.begin}{D.call}now{D.separator}{{}}{D.call_end}",
            f"{D.call}now{D.separator}{{}}{D.call_end}{D.end}",
        ),
        ("mistral", "[TOOL_CALLS]now[ARGS]{}", "[TOOL_CALLS]now[ARGS]{}"),
        (
            "mistral-list",
            '[TOOL_CALLS][{"name": "now", "arguments": {}}',
            ', {"name": "now", "arguments": {}}]',
        ),
    ],
)
def test_several_calls_where_they_are_allowed(name: str, first: str, further: str) -> None:
    assert takes(compiled(name, "required"), first + further) == first + further + "END"
    one = takes(compiled(name, "required", parallel=False), first + further)
    assert one.startswith(first[:-1]) and not one.endswith(further[-9:] + "END")


def test_arguments_as_in_python() -> None:
    properties: dict[str, Any] = {"a": {"type": "boolean"}, "b": {}, "c": {"$ref": "#/$defs/c"}}
    defined = {"c": {"type": "integer"}}
    f = tool("f", ["b"], **properties)
    f["function"]["parameters"]["$defs"] = defined
    constraint = compiled("lfm2", "required", tools=[f, tool("g")])
    for text in ("f(b=1)", "f(a=True, b=[1, {}], c=2)", "f(a=false,b=null)", "g()", 'f(b="x")'):
        whole = f"<|tool_call_start|>[{text}]<|tool_call_end|>"
        assert takes(constraint, whole) == whole + "END"
    for text, taken in (
        ("f()", "f("),
        ("f(a=True)", "f(a=True"),
        ("f(b=1, c=x", "f(b=1, c="),
        ("g(a", "g("),
        ("f(b=1,)", "f(b=1,"),
    ):
        assert takes(constraint, f"<|tool_call_start|>[{text}") == f"<|tool_call_start|>[{taken}"
    anything = {"type": "function", "function": {"name": "h"}}
    whole = '<|tool_call_start|>[h(x=1, y_2="a")]<|tool_call_end|>'
    assert takes(compiled("lfm2", "h", tools=[anything]), whole) == whole + "END"
    for wrong in ({"anyOf": [{}]}, {"required": ["x"]}, {"properties": {"a": 3}}):
        broken = [{"type": "function", "function": {"name": "f", "parameters": wrong}}]
        with pytest.raises(RequestError):
            compiled("lfm2", tools=broken)


def test_channels_of_a_prompt() -> None:
    inside = "<|start|>assistant<|channel|>analysis<|message|>So"
    text = f" on.<|end|><|start|>assistant{valid(CALLS['harmony'][1])}"
    for choice in ("auto", "required"):
        assert takes(compiled("harmony", choice, inside), text) == text + "END"
    assert takes(compiled("harmony", "auto", inside), " on.") == " on.END"
    assert takes(compiled("harmony", "required", inside), " on.") == " on."
    with pytest.raises(RequestError, match="header"):
        compiled("harmony", "auto", "<|start|>assistant<|channel|>final")


def test_markers_that_are_control_tokens() -> None:
    tokenizer = tokenizer_of("bpe")
    marker = tokenizer.token_id("<tool>")
    assert marker is not None
    for name in CALLS:
        lark = grammar(name, special=lambda text: marker)
        assert lark is not None and f"<[{marker}]>" in lark
        assert "<|" not in lark and "<｜" not in lark
        compile_constraint(tokenizer, "grammar", lark)
    lark = grammar("lfm2", "required", special=lambda text: marker)
    constraint = compile_constraint(tokenizer, "grammar", lark)
    tokens = [marker, *tokens_of(tokenizer, "[now()]"), marker]
    assert constraint.clone().validate(tokens) == len(tokens)
