"""Chat templates: texts by hand, and byte for byte those of transformers, where that is installed,
for templates of our own and for a folder of others."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pytest
from chat_cases import CHATS, OPTIONS, SPECIALS, TEMPLATES, TOOLS, assistant, user
from demo import demo
from oracles import TRANSFORMERS
from riverrun.errors import RequestError, TemplateError
from riverrun.models.chat import ChatTemplate, ChatTemplates

FOLDER = "RIVERRUN_CHAT_TEMPLATES"


def rendered(template: str, chat: Any, **options: Any) -> str:
    return ChatTemplate(template, "here", SPECIALS).render(chat, **options)


@cache
def peer() -> Any:
    """transformers' tokenizer with these special tokens."""
    reason = "needs transformers: pip install 'riverrun[transformers]'"
    transformers = pytest.importorskip("transformers", minversion=TRANSFORMERS, reason=reason)
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    model = Tokenizer(WordLevel({"a": 0}, "a"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=model, **SPECIALS)


def both(template: str, chat: Any, options: dict[str, Any]) -> tuple[str | None, str | None]:
    """The text here and the one of transformers, None for a refusal."""
    try:
        want = peer().apply_chat_template(chat, tokenize=False, chat_template=template, **options)
    except (jinja2.TemplateError, TypeError, ValueError):
        want = None
    try:
        return rendered(template, chat, **options), want
    except RequestError:
        return None, want


@pytest.mark.parametrize("name", TEMPLATES)
def test_texts_are_those_of_transformers(name: str) -> None:
    peer()
    texts = 0
    for chat, options in product(CHATS, OPTIONS):
        got, want = both(TEMPLATES[name], CHATS[chat], OPTIONS[options])
        assert got == want, (chat, options)
        texts += got is not None
    assert texts > 20


def test_texts_of_a_folder_are_those_of_transformers() -> None:
    if not os.environ.get(FOLDER):
        pytest.skip(f"{FOLDER} names no folder of chat templates (*.jinja)")
    peer()
    paths = sorted(Path(os.environ[FOLDER]).rglob("*.jinja"))
    assert paths
    for path, chat, options in product(paths, CHATS, OPTIONS):
        got, want = both(path.read_text(), CHATS[chat], OPTIONS[options])
        assert got == want, (path.name, chat, options)


def test_a_chat_in_turns() -> None:
    text = rendered(TEMPLATES["turns"], CHATS["turns"][:3], add_generation_prompt=True)
    assert text == "<|user|>\na</s>\n<|assistant|>\nb\n</s>\n<|user|>\nc</s>\n<|assistant|>\n"


def test_white_space_around_statements() -> None:
    text = rendered(TEMPLATES["strict"], CHATS["system"], add_generation_prompt=True)
    assert text == "<s>\n[USER]Be <b>brief</b> & kind.\nHi\n[ASSISTANT]\n"


def test_json_has_no_html_escapes() -> None:
    text = rendered("{{ tools[0] | tojson }}", [user("x")], tools=TOOLS)
    assert "Wind & rain <now>, 'here'" in text and "Città" in text


@pytest.mark.parametrize(
    ("thinking", "end"), [({}, "<|assistant|>"), ({"enable_thinking": False}, "</think>\n\n")]
)
def test_thinking_is_on_unless_turned_off(thinking: dict[str, Any], end: str) -> None:
    text = rendered(TEMPLATES["reasoning"], CHATS["one"], add_generation_prompt=True, **thinking)
    assert text.endswith(end)


@pytest.mark.parametrize(
    ("content", "template", "want"),
    [
        ("Sure, ", "turns", "<|assistant|>\nSure, "),
        ("Sure, ", "strict", "[ASSISTANT]Sure,"),
        ([{"type": "text", "text": "So"}], "turns", "<|assistant|>\nSo"),
    ],
)
def test_the_last_message_goes_on(content: Any, template: str, want: str) -> None:
    chat = [user("q"), assistant(content)]
    assert rendered(TEMPLATES[template], chat, continue_final_message=True).endswith(want)


def test_the_callers_messages_stay_as_they_are() -> None:
    chat = [user("q"), assistant([{"type": "text", "text": "So"}], tool_calls=None)]
    before = repr(chat)
    rendered(TEMPLATES["turns"], chat, continue_final_message=True)
    assert repr(chat) == before


class Role(str, enum.Enum):
    user = "user"


@dataclass
class Said:
    role: Role
    content: str
    count: np.int64


def test_objects_are_what_they_hold() -> None:
    text = rendered("{{ messages[0] | tojson }}", [Said(Role.user, "x", np.int64(3))])
    assert text == '{"role": "user", "content": "x", "count": 3}'


WRONG: dict[str, tuple[Any, dict[str, Any], str]] = {
    "text": ("Hi", {}, "list of dicts"),
    "one-dict": (user("Hi"), {}, "list of dicts"),
    "none": ([], {}, "at least one"),
    "no-dict": (["Hi"], {}, r"messages\[0\]: expected a dict"),
    "no-role": ([{"content": "Hi"}], {}, "expected a role"),
    "bytes": ([user(b"Hi")], {}, r"messages\[0\]\.content: .* got bytes"),
    "a-tool": ([user("Hi")], {"tools": ["f"]}, r"tools\[0\]: expected a dict"),
    "tools": ([user("Hi")], {"tools": {"a": 1}}, "tools: expected a list"),
    "variable": ([user("Hi")], {"date": object()}, "date: expected"),
    "both": (
        CHATS["open"],
        {"continue_final_message": True, "add_generation_prompt": True},
        "give one of them",
    ),
    "nothing-said": (
        [user("q"), assistant(None)],
        {"continue_final_message": True},
        "no 'content'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_named(case: str) -> None:
    chat, options, words = WRONG[case]
    with pytest.raises(RequestError, match=words):
        rendered(TEMPLATES["turns"], chat, **options)


FAILING = {
    "refused": ("{{ raise_exception('no system, please') }}", "refuses .*: no system, please"),
    "syntax": ("{% if %}", "line 1: TemplateSyntaxError"),
    "third-line": ("\n\n{{ messages.a.b }}", "line 3: UndefinedError"),
    "type": ("{{ 1 + 'a' }}", "TypeError"),
    "zero": ("{{ 1 / 0 }}", "ZeroDivisionError"),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_template_that_fails_says_where(case: str) -> None:
    template, words = FAILING[case]
    with pytest.raises(TemplateError, match=f"^here: .*{words}"):
        rendered(template, [user("x")])


def test_templates_of_a_file_by_name() -> None:
    metadata = {
        "tokenizer.chat_template": "{{ 'plain' }}",
        "tokenizer.chat_template.tool_use": "{{ 'with tools' }}",
        "tokenizer.chat_templates": ["tool_use"],
    }
    found = ChatTemplates.read("file", metadata, demo().tokenizer)
    assert sorted(found.sources) == ["default", "tool_use"]
    for wanted, with_tools, text in [
        (None, False, "plain"),
        (None, True, "with tools"),
        ("tool_use", False, "with tools"),
        ("{{ 'mine' }}", True, "mine"),
    ]:
        assert found.choose(wanted, with_tools).render([user("x")]) == text
    with pytest.raises(TemplateError, match="no chat template 'rag'; the file has default, tool"):
        found.choose("rag")
    with pytest.raises(TemplateError, match=r"file: the model file has no .*chat_template="):
        ChatTemplates.read("file", {}, demo().tokenizer).choose()
    with pytest.raises(TemplateError, match="expected a text, got int"):
        ChatTemplates.read("file", {"tokenizer.chat_template": 3}, demo().tokenizer)
