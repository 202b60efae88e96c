"""The openai package against the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from demo import demo
from server_rig import PROMPT, Server, serving

openai = pytest.importorskip("openai", reason="the openai package is not installed")
MESSAGES: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(spec="mtp", api_keys=("secret",)) as made:
        yield made


@pytest.fixture(scope="module")
def client(server: Server) -> Any:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0)


def test_models(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["riverrun-demo-q8_0"]
    assert client.models.retrieve("riverrun-demo-q8_0").owned_by == "riverrun"


def test_completions(client: Any) -> None:
    found = client.completions.create(model="default", prompt=PROMPT, max_tokens=8, temperature=0)
    assert found.choices[0].text == "".join(demo().generate(PROMPT, 8, temperature=0))


def test_chat(client: Any) -> None:
    options: Any = {"model": "", "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
    found = client.chat.completions.create(**options)
    expected = "".join(demo().chat(MESSAGES, 12, temperature=0))
    assert found.choices[0].message.content == expected
    assert found.usage.completion_tokens == 12
    stream = client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == expected
    assert chunks[-1].usage.total_tokens == found.usage.total_tokens


def test_log_probabilities_of_chats(client: Any) -> None:
    options: Any = {"model": "", "messages": MESSAGES, "max_tokens": 6, "temperature": 0}
    found = client.chat.completions.create(**options, logprobs=True, top_logprobs=3)
    content = found.choices[0].logprobs.content
    assert len(content) == 6
    assert all(len(each.top_logprobs) == 3 for each in content)
    assert all(each.logprob == each.top_logprobs[0].logprob for each in content)
    streamed = client.chat.completions.create(**options, logprobs=True, stream=True)
    parts = [c.choices[0].logprobs for c in streamed]
    tokens = [each.token for part in parts if part for each in part.content or []]
    assert tokens == [each.token for each in content]


def test_json_schema(client: Any) -> None:
    pytest.importorskip("llguidance")
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["n"],
        "additionalProperties": False,
    }
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    found = client.chat.completions.create(
        model="", messages=MESSAGES, max_tokens=60, temperature=0, response_format=form
    )
    import json

    value = json.loads(found.choices[0].message.content)
    assert 1 <= value["n"] <= 9


def test_embeddings(client: Any) -> None:
    found = client.embeddings.create(model="", input=["import os", "x"], encoding_format="float")
    wanted = demo().embed(["import os", "x"])
    for given, vector in zip(found.data, wanted, strict=True):
        assert given.embedding == pytest.approx(vector.tolist(), abs=1e-6)
    coded = client.embeddings.create(model="", input="import os")
    assert coded.data[0].embedding == pytest.approx(wanted[0].tolist(), abs=1e-6)


def test_errors_are_its_own(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model="", prompt="x", temperature=-1)
    with pytest.raises(openai.NotFoundError, match="gpt-9"):
        client.completions.create(model="gpt-9", prompt="x")
    wrong = openai.OpenAI(base_url=client.base_url, api_key="other", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        wrong.models.list()
