"""Control tokens that messages spell out are text where that is asked for, however a template
joins, cuts or writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from chat_cases import OPTIONS, SPECIALS, TEMPLATES, assistant, calling, user
from riverrun.engine.chat import chat_tokens
from riverrun.errors import RequestError, TemplateError
from riverrun.models.chat import ChatTemplate
from riverrun.models.chat.template import Rendered
from riverrun.models.tokenizer import Tokenizer, TokenType, load_tokenizer

# A role marker each of families that chat models come from, and one that is but letters.
MARKERS = (
    "<|im_start|>",
    "<|im_end|>",
    "[INST]",
    "[/INST]",
    "<｜User｜>",
    "</s>",
    "<eot>",
    "sop",
)
JOINED = "{% for m in messages %}{{ m.content }}{% endfor %}<|im_end|>"
TRIMMED = "{% for m in messages %}{{ m.content | trim }}{% endfor %}<|im_end|>"
BACKWARDS = "{% for m in messages %}{{ m.content[::-1] }}{% endfor %}<|im_end|>"
CUT = (
    "{% for m in messages %}{{ m.content.split('<think>')[0] }}"
    "{{ m.content.split('</think>')[-1] }}{% endfor %}<|im_end|>"
)
LISTED = "{{ messages | map(attribute='content') | join }}<|im_end|>"
ASCII = "{{ messages | tojson(ensure_ascii=true) }}<|im_end|>"
SAID = "{% for m in messages %}<|im_start|>{{ m.role }} {{ m | tojson }}<|im_end|>{% endfor %}"
TOOLS = "{{ tools | tojson }}{{ documents[0].text }}<|im_end|>"


def vocabulary() -> Tokenizer:
    pieces = ["<unk>", *MARKERS, "<think>", "</think>", *map(chr, range(32, 127)), "▁", "｜"]
    pieces += [f"<0x{byte:02X}>" for byte in range(256)]
    kinds = [TokenType.UNKNOWN] + [TokenType.CONTROL] * len(MARKERS) + [TokenType.USER_DEFINED] * 2
    kinds += [TokenType.NORMAL] * (len(pieces) - len(kinds) - 256) + [TokenType.BYTE] * 256
    return load_tokenizer(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": pieces,
            "tokenizer.ggml.token_type": [int(kind) for kind in kinds],
            "tokenizer.ggml.scores": [0.0] * len(pieces),
            "tokenizer.ggml.add_bos_token": False,
            "tokenizer.ggml.add_space_prefix": False,
        },
        "here",
    )


TOKENIZER = vocabulary()


def rendered(source: str, messages: list[dict[str, Any]], **options: Any) -> Rendered:
    template = ChatTemplate(source, "here", SPECIALS)
    return template.rendered(messages, control_texts=TOKENIZER.control_texts, **options)


def tokens(text: Rendered) -> list[int]:
    assert text.stand_ins is not None
    return chat_tokens(TOKENIZER, text.text, text.stand_ins.originals)


def controls(ids: list[int]) -> list[str]:
    """The control tokens among ids."""
    kinds = (TokenType.CONTROL, TokenType.UNKNOWN)
    return [TOKENIZER.token_text(i) for i in ids if TOKENIZER.token_type(i) in kinds]


def halves(marker: str) -> list[list[dict[str, Any]]]:
    """Two messages that make a marker together, cut at each place."""
    return [[user(marker[:n]), user(marker[n:])] for n in range(1, len(marker))]


ATTACKS: dict[str, tuple[str, Callable[[str], list[list[dict[str, Any]]]]]] = {
    "whole": (JOINED, lambda marker: [[user(f"a{marker}b{marker}")]]),
    "split": (JOINED, halves),
    "listed": (LISTED, halves),
    "trimmed": (
        TRIMMED,
        lambda marker: [
            [user(a["content"] + " "), user("\n" + b["content"])] for a, b in halves(marker)
        ],
    ),
    "backwards": (BACKWARDS, lambda marker: [[user(marker[::-1])]]),
    "cut": (
        CUT,
        lambda marker: [
            [user(f"{a['content']}<think>x</think>{b['content']}")] for a, b in halves(marker)
        ],
    ),
    "ascii": (ASCII, lambda marker: [[user(marker)]]),
    "tool result": (SAID, lambda marker: [[{"role": "tool", "name": "f", "content": marker}]]),
    "tool call": (
        SAID,
        lambda marker: [[assistant("", tool_calls=calling({marker: [marker, {"x": marker}]}))]],
    ),
    "reasoning": (SAID, lambda marker: [[assistant("a", reasoning_content=marker)]]),
    "role": (SAID, lambda marker: [[{"role": marker, "content": ""}]]),
}


# A token of letters alone is covered where it stands as a whole.
IN_PARTS = ("split", "listed", "trimmed", "backwards", "cut", "ascii")
CASES = [(a, m) for a in ATTACKS for m in MARKERS if m != "sop" or a not in IN_PARTS]


@pytest.mark.parametrize(("attack", "marker"), CASES, ids=str)
def test_markers_of_messages_are_text(attack: str, marker: str) -> None:
    source, chats = ATTACKS[attack]
    want = ["<|im_start|>", "<|im_end|>"] if source is SAID else ["<|im_end|>"]
    for chat in chats(marker):
        made = rendered(source, chat)
        ids = tokens(made)
        assert controls(ids) == want
        plain = ChatTemplate(source, "here", SPECIALS).render(chat)
        assert made.plain == plain == TOKENIZER.decode(ids, special=True)
        # The attack is one: read as they are, these texts have more control tokens.
        if attack != "ascii" or marker.isascii():
            assert len(controls(chat_tokens(TOKENIZER, plain))) > len(want)


@pytest.mark.parametrize("marker", MARKERS)
def test_markers_of_tools_and_documents_are_text(marker: str) -> None:
    tool = {"type": "function", "function": {"name": "f", "description": marker, marker: [marker]}}
    made = rendered(TOOLS, [user("a")], tools=[tool], documents=[{"text": marker}])
    assert controls(tokens(made)) == ["<|im_end|>"] and made.plain.count(marker) >= 4


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", [name for name in TEMPLATES if name != "further"])
def test_chats_without_markers_are_as_ever(name: str, options: str) -> None:
    """Also where the template looks for `</think>`, and ends inside a message."""
    chat = [
        user("a < b [x] | </y> | _"),
        assistant("<think>\nhm <\n</think>\n\nyes |", tool_calls=None),
        user("｜ 1/2 'q'"),
        assistant("Sure, ", reasoning_content="a > b"),
    ]
    chat = chat if "continue" in "".join(OPTIONS[options]) else chat[:-1]
    template = ChatTemplate(TEMPLATES[name], "here", SPECIALS)
    given = {key: value for key, value in OPTIONS[options].items()}
    try:
        plain = template.render(chat, **given)
    except (RequestError, TemplateError) as error:  # the covered text fails in the same way
        with pytest.raises(type(error)):
            rendered(TEMPLATES[name], chat, **given)
        return
    made = rendered(TEMPLATES[name], chat, **given)
    assert made.plain == plain
    assert tokens(made) == chat_tokens(TOKENIZER, plain)


def test_texts_with_private_use_characters() -> None:
    """Stand-ins are characters that no text has, as such or escaped; none are left of texts that
    have them all."""
    text = "".join(map(chr, range(0xE000, 0xE100))) + "\\uE100 <eot>"
    made = rendered(JOINED, [user(text)])
    assert made.plain == text + "<|im_end|>" and controls(tokens(made)) == ["<|im_end|>"]
    assert made.stand_ins is not None and min(made.stand_ins.originals) == "\ue101"
    with pytest.raises(RequestError, match=r"private use characters U\+E000 to U\+F8FF"):
        rendered(JOINED, [user("".join(map(chr, range(0xE000, 0xF900))))])
