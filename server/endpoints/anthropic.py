"""/v1/messages: messages answered, as the Anthropic API has it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

from ..answers import Reader
from ..anthropic import BlockWriter, chat_of, stop_reason, usage
from ..endpoint import Call, endpoint
from ..failures import anthropic_error, as_api_error
from ..generating import apart, sampling_options
from ..http import Answer, Stream, sse
from ..prompting import prepare, render
from ..served import Part, Served
from ..wire.anthropic import CountBody, MessagesBody


@endpoint(
    "/v1/messages",
    MessagesBody,
    summary="Answer messages, as Anthropic does.",
    error=anthropic_error,
)
async def messages(call: Call[MessagesBody]) -> Answer | Stream:
    """Answer the last of some messages."""
    body = call.body
    chat = chat_of(body)
    served = await call.model(body.model)
    prepared = await apart(prepare, served, chat)
    options = prepared.joined(sampling_options(call.service, served, body.sampling()))
    run = served.submit(prepared.tokens, body.max_tokens, **options)
    writer = _Writer(body, served, Reader(prepared.parser(), run))
    if body.stream:
        return Stream(writer.parts(), _broken, ping=PING)
    return Answer(await writer.whole())


@endpoint(
    "/v1/messages/count_tokens",
    CountBody,
    summary="How many tokens messages are.",
    error=anthropic_error,
)
async def count_tokens(call: Call[CountBody]) -> Answer:
    """Count the tokens of a prompt."""
    chat = chat_of(call.body)
    served = await call.model(call.body.model)
    rendered = await apart(render, served, chat)
    return Answer({"input_tokens": len(rendered.tokens)})


class _Writer:
    """The answer to one request."""

    def __init__(self, body: MessagesBody, served: Served, reader: Reader) -> None:
        self.served, self.reader, self.run = served, reader, reader.run
        thinking = body.thinking
        omits = thinking is not None and thinking.display == "omitted"
        self._blocks = BlockWriter(reader.gathered, omits)
        self._id = f"msg_{uuid.uuid4().hex[:24]}"

    async def whole(self) -> dict[str, Any]:
        """All at once."""
        try:
            async for part in self.run.parts():
                for _ in self._events(part):
                    pass
        finally:
            self.run.cancel()
        return {**self._message(), "content": self._blocks.blocks, **self._end()}

    async def parts(self) -> AsyncIterator[bytes]:
        """Events as they come."""
        try:
            yield _sse({"type": "message_start", "message": self._message()})
            yield PING
            async for part in self.run.parts():
                yield b"".join(map(_sse, self._events(part)))
            usage = self._message()["usage"]
            yield _sse({"type": "message_delta", "delta": self._end(), "usage": usage})
            yield _sse({"type": "message_stop"})
        finally:
            self.run.cancel()

    def _events(self, part: Part) -> Iterator[dict[str, Any]]:
        """The events of a part."""
        yield from self._blocks.events(self.reader.deltas(part))
        if part.finished and self.run.request.error is None:
            yield from self._blocks.close()

    def _message(self) -> dict[str, Any]:
        """The message before anything is said."""
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self.served.name,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage(self.run.request),
        }

    def _end(self) -> dict[str, Any]:
        request = self.run.request
        reason = stop_reason(request, bool(self.reader.gathered.calls))
        stopped = request.stop_text if reason == "stop_sequence" else None
        return {"stop_reason": reason, "stop_sequence": stopped}


def _sse(event: dict[str, Any]) -> bytes:
    return sse(event, event["type"])


PING = _sse({"type": "ping"})


def _broken(error: BaseException) -> bytes:
    return _sse(anthropic_error(as_api_error(error)))
