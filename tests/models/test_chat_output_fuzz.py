"""Random texts of markers' pieces, and how templates lead to families."""

from __future__ import annotations

import random
import re

import pytest
from chat_outputs import fed, parser_of
from riverrun.models.chat.output import format_for, formats

PIECES = (
    "<tool_call>", "</tool_call>", "<tool_", "call>", "<function=", "f>", "</function>", "<think>",
    "</think>", "<parameter=", "a>", "</parameter>", "<arg_key>", "</arg_key>", "<arg_value>",
    "</arg_value>", "\n", " ", "{", "}", '"', '{"name": "f", "arguments": {', '"a": ', "[", "1",
    ",", "\\", "x", "ü🎈", "<|python_tag|>", "<|channel|>", "<|message|>", "<|call|>", "(", ")",
    "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]",
)  # fmt: skip
HALVES = (
    "<tool_call",
    "<function",
    "tool_call>",
    "<think",
    "<",
    "</",
    ">",
    "x ",
    "\n",
    "{",
    '"',
    "ü",
)


def random_text(seed: int, pieces: tuple[str, ...]) -> list[str]:
    rng = random.Random(seed)
    return [rng.choice(pieces) for _ in range(rng.randrange(1, 25))]


@pytest.mark.parametrize("name", sorted(formats()))
@pytest.mark.parametrize("seed", range(0, 400, 50))
def test_no_text_makes_a_parser_raise(name: str, seed: int) -> None:
    for i in range(seed, seed + 50):
        pieces = random_text(i, PIECES)
        whole = fed(parser_of(name), ["".join(pieces)])
        assert fed(parser_of(name), pieces) == whole
        assert fed(parser_of(name), "".join(pieces)) == whole


@pytest.mark.parametrize("name", ["hermes", "plain", "qwen3-coder", "glm"])
def test_all_text_without_markers_is_kept(name: str) -> None:
    for seed in range(200):
        text = "".join(random_text(seed, HALVES))
        if re.search("<tool_call>|<think>|<function=", text):
            continue
        found = fed(parser_of(name), text)
        assert found.content == text and not found.calls and not found.reasoning


@pytest.mark.parametrize(
    "template, name",
    [
        ("{{ messages }}", "plain"),
        ("in <tool_call> tags: <tool_calls>[", "plain"),
        ("{{ '<tool_call>' ~ tool_call | tojson }}", "hermes"),
        ("<tool_call>\n<function={{ name }}>\n<parameter=", "qwen3-coder"),
        ("<tool_call>{{ name }}<arg_key>", "glm"),
    ],
)
def test_templates_lead_to_families(template: str, name: str) -> None:
    assert format_for(template, []).name == name
    assert format_for(template, []).think is None
    assert format_for(template + "</think>", []).think is not None
    assert format_for(template, ["<think>"]).think is not None
