"""/v1/responses: items answered, as OpenAI's Responses API has it, without state that is kept."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

from ...models.chat.output import Content, Reasoning
from ..answers import Reader
from ..choices import entries_of, finish_reason, full_logprob
from ..endpoint import Call, endpoint
from ..failures import as_api_error
from ..generating import apart, sampling_options
from ..http import Answer, Stream, sse
from ..prompting import prepare
from ..responses import ItemWriter, chat_of, logprobs_of
from ..served import Part, Served
from ..token_places import TokenPlaces
from ..wire.responses import ResponsesBody
from ..wire.sampling import check_tokens


@endpoint("/v1/responses", ResponsesBody, summary="Answer a text, or items of a chat.")
async def responses(call: Call[ResponsesBody]) -> Answer | Stream:
    """Answer the last of some items."""
    body = call.body
    chat, logprobs = chat_of(body), logprobs_of(body)
    served = await call.model(body.model)
    prepared = await apart(prepare, served, chat)
    options = prepared.joined(sampling_options(call.service, served, body))
    most = check_tokens("max_output_tokens", body.max_output_tokens)
    run = served.submit(prepared.tokens, most, logprobs=logprobs, **options)
    writer = _Writer(body, served, Reader(prepared.parser(), run))
    if body.stream:
        return Stream(writer.parts(), writer.broken)
    return Answer(await writer.whole())


class _Writer:
    """The answer to one request."""

    def __init__(self, body: ResponsesBody, served: Served, reader: Reader) -> None:
        self.body, self.served, self.reader, self.run = body, served, reader, reader.run
        self._items, self._places = ItemWriter(reader.gathered), TokenPlaces(self.run.request)
        self._id, self._created = f"resp_{uuid.uuid4().hex}", int(time.time())
        self._count = 0  # events so far
        self._thought = 0  # tokens of reasoning

    async def whole(self) -> dict[str, Any]:
        """All at once."""
        try:
            async for part in self.run.parts():
                for _ in self._new(part):
                    pass
        finally:
            self.run.cancel()
        return self._response(self._status())

    async def parts(self) -> AsyncIterator[bytes]:
        """Events as they come."""
        try:
            for name in ("created", "in_progress"):
                yield self._sse(self._with_response(name, "in_progress"))
            async for part in self.run.parts():
                yield b"".join(map(self._sse, self._new(part)))
            status = self._status()
            yield self._sse(self._with_response(status, status))
        finally:
            self.run.cancel()

    def broken(self, error: BaseException) -> bytes:
        """The last event of a stream that failed."""
        event = self._with_response("failed", "failed")
        found = {"code": "server_error", "message": as_api_error(error).message}
        event["response"]["error"] = found
        return self._sse(event)

    def _new(self, part: Part) -> Iterator[dict[str, Any]]:
        """The events of a part."""
        request = self.run.request
        for delta in self.reader.deltas(part):
            tokens = self._places.tokens(delta)
            if isinstance(delta, Reasoning):
                self._thought += tokens[1] - tokens[0]
            told = entries_of(request, tokens) if isinstance(delta, Content) else []
            yield from self._items.events(delta, list(map(full_logprob, told)))
        if part.finished and request.error is None:
            yield from self._items.close(self._status())

    def _status(self) -> str:
        cut = finish_reason(self.run.request) == "length"
        return "incomplete" if cut else "completed"

    def _sse(self, event: dict[str, Any]) -> bytes:
        self._count += 1
        return sse({**event, "sequence_number": self._count - 1}, event["type"])

    def _with_response(self, name: str, status: str) -> dict[str, Any]:
        return {"type": f"response.{name}", "response": self._response(status)}

    def _response(self, status: str) -> dict[str, Any]:
        body, params = self.body, self.run.request.sampler.params
        ended = status in ("completed", "incomplete")
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": cut,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self.served.name,
            "output": [dict(item) for item in self._items.items],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {
                "effort": body.reasoning.effort if body.reasoning else None,
                "summary": None,
            },
            "store": False,
            "temperature": params.temperature,
            "text": {"format": (body.text and body.text.format) or {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": params.top_p,
            "truncation": "disabled",
            "usage": self._usage() if ended else None,
        }

    def _usage(self) -> dict[str, Any]:
        request = self.run.request
        prompt, answer = len(request.prompt), len(request.tokens)
        kept = {"cached_tokens": request.timings.cache_n, "cache_write_tokens": 0}
        return {
            "input_tokens": prompt,
            "input_tokens_details": kept,
            "output_tokens": answer,
            "output_tokens_details": {"reasoning_tokens": self._thought},
            "total_tokens": prompt + answer,
        }
