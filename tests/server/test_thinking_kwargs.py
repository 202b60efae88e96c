"""What templates are told of reasoning: the same, whatever the interface calls it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from scripted import rendered
from server_rig import Server, serving

HI = [{"role": "user", "content": "hi"}]
CHAT: dict[str, Any] = {"messages": HI, "max_tokens": 1}
ITEMS: dict[str, Any] = {"input": "hi", "max_output_tokens": 1}
LOW, NONE, ON, OFF = (
    {"reasoning_effort": "low"},
    {"reasoning_effort": "none", "enable_thinking": False},
    {"enable_thinking": True},
    {"enable_thinking": False},
)
ASKED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("/v1/chat/completions", {**CHAT, "reasoning_effort": "low"}, LOW),
    ("/v1/chat/completions", {**CHAT, "reasoning": {"effort": "low"}}, LOW),
    ("/v1/chat/completions", {**CHAT, "reasoning_effort": "none"}, NONE),
    ("/v1/chat/completions", {**CHAT, "enable_thinking": True}, ON),
    ("/v1/chat/completions", {**CHAT, "thinking": {"type": "disabled"}}, OFF),
    ("/v1/chat/completions", {**CHAT, "enable_thinking": True, "chat_template_kwargs": OFF}, OFF),
    (
        "/v1/chat/completions",
        {**CHAT, "enable_thinking": True, "reasoning_effort": "none"},
        {**NONE, **ON},
    ),
    ("/v1/responses", {**ITEMS, "reasoning": {"effort": "low"}}, LOW),
    ("/v1/responses", {**ITEMS, "reasoning": {"effort": "none"}}, NONE),
    ("/v1/messages", {**CHAT, "output_config": {"effort": "low"}}, LOW),
    ("/v1/messages", {**CHAT, "output_config": {"effort": "none"}}, NONE),
    ("/v1/messages", {**CHAT, "thinking": {"type": "adaptive"}}, ON),
    ("/v1/messages", {**CHAT, "thinking": {"type": "disabled"}}, OFF),
    ("/api/chat", {"messages": HI, "think": False, "stream": False}, OFF),
    ("/api/chat", {"messages": HI, "stream": False, "options": {"num_predict": 1}}, {}),
    ("/api/generate", {"prompt": "hi", "think": False, "stream": False}, OFF),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


@pytest.mark.parametrize("path, body, told", ASKED)
def test_templates_are_told(
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: dict[str, Any],
    told: dict[str, Any],
) -> None:
    chats = rendered(monkeypatch)
    server.post(path, **body)
    assert chats[-1].template_kwargs == told
