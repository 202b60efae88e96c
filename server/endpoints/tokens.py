"""/tokenize, /detokenize, /apply-template: texts and what models see of them."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from ...engine.items import checked_ids
from ..endpoint import Call, endpoint
from ..generating import apart
from ..http import Answer
from ..prompting import render
from ..wire.body import Body
from ..wire.openai import ChatBody
from .openai_chat import chat_of


class TokenizeBody(Body):
    """/tokenize."""

    ignored: ClassVar[frozenset[str]] = frozenset({"user"})

    content: str
    model: str | None = None
    add_special: bool = Field(False, description="Put begin and end tokens around it.")
    parse_special: bool = Field(True, description="Read control tokens that it spells out.")
    with_pieces: bool = False


class DetokenizeBody(Body):
    """/detokenize."""

    tokens: list[int]
    model: str | None = None


@endpoint("/tokenize", TokenizeBody, summary="The tokens of a text.")
async def tokenize(call: Call[TokenizeBody]) -> Answer:
    """The tokens of a text."""
    body = call.body
    tokenizer = (await call.model(body.model)).model.tokenizer
    ids = await apart(tokenizer.encode, body.content, body.add_special, body.parse_special)
    if not body.with_pieces:
        return Answer({"tokens": ids})
    return Answer(
        {"tokens": [{"id": i, "piece": _piece(tokenizer.token_bytes(i, True))} for i in ids]}
    )


@endpoint("/detokenize", DetokenizeBody, summary="The text of tokens.")
async def detokenize(call: Call[DetokenizeBody]) -> Answer:
    """The text of tokens."""
    model = (await call.model(call.body.model)).model
    ids = checked_ids(call.body.tokens, model.n_vocab)
    return Answer({"content": model.tokenizer.decode(ids, special=True)})


@endpoint("/apply-template", ChatBody, summary="The prompt that a chat becomes.")
async def apply_template(call: Call[ChatBody]) -> Answer:
    """The text of a chat's prompt."""
    served = await call.model(call.body.model)
    rendered = await apart(render, served, chat_of(call.body))
    return Answer({"prompt": rendered.text})


def _piece(data: bytes) -> Any:
    """A token's text, or its bytes where it is a part of a character."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
