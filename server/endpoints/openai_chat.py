"""/v1/chat/completions: messages answered, as the OpenAI API has it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from ...models.chat.output import CallArguments, CallStart, Content, Delta, Reasoning
from ..answers import Reader
from ..choices import chat_logprobs, entries_of, header, merged, submit_choices, timings, usage
from ..endpoint import Call, endpoint
from ..failures import bad_request
from ..generating import apart, broken_stream, sampling_options, stream_end
from ..http import Answer, Last, Stream, sse
from ..prompting import (
    Chat,
    Prepared,
    prepare,
    read_choice,
    read_format,
    read_tools,
    thinking_kwargs,
)
from ..served import Part, Running, Served
from ..wire.openai import ChatBody
from ..wire.sampling import check_tokens


@endpoint("/v1/chat/completions", ChatBody, summary="Answer a chat.")
async def chat_completions(call: Call[ChatBody]) -> Answer | Stream:
    """Answer the last of some messages."""
    body = call.body
    served = await call.model(body.model)
    chat = chat_of(body)
    prepared = await apart(prepare, served, chat)
    runs = submit_choices(
        served,
        [prepared.tokens],
        body.n,
        _most(body),
        logprobs=_logprobs(body),
        **prepared.joined(sampling_options(call.service, served, body)),
    )
    writer = _Writer(body, served, prepared, runs)
    if body.stream:
        return Stream(writer.events(), broken_stream)
    return Answer(await writer.whole())


def chat_of(body: ChatBody) -> Chat:
    """What a body asks for. Raises ApiError."""
    tools = read_tools(body.tools)
    schema = read_format(body.response_format)
    if schema is None and body.json_schema is not None:
        schema = body.json_schema
    parallel = body.parallel_tool_calls
    return Chat(
        body.messages,
        tools,
        read_choice(body.tool_choice, tools),
        True if parallel is None else parallel,
        schema,
        body.grammar,
        body.chat_template,
        template_kwargs(body),
        body.documents,
        bool(body.continue_final_message),
        body.reasoning is not False,
        body.thinking.budget if body.thinking is not None else None,
    )


def template_kwargs(body: ChatBody) -> dict[str, Any]:
    """Further variables of the template."""
    effort, thinks = body.reasoning_effort, body.enable_thinking
    if isinstance(body.reasoning, dict):
        effort = body.reasoning.get("effort", effort)
    if thinks is None and body.thinking is not None:
        thinks = body.thinking.enabled
    found = {**thinking_kwargs(thinks, effort), **(body.chat_template_kwargs or {})}
    if body.add_generation_prompt is not None:
        found["add_generation_prompt"] = body.add_generation_prompt
    return found


def _most(body: ChatBody) -> int:
    for name in ("max_completion_tokens", "max_tokens", "n_predict"):
        value = getattr(body, name)
        if value is not None:
            return check_tokens(name, value)
    return -1


def _logprobs(body: ChatBody) -> int | None:
    if body.top_logprobs and not body.logprobs:
        raise bad_request("top_logprobs: needs logprobs: true", "top_logprobs")
    return body.top_logprobs or 0 if body.logprobs else None


class _Writer:
    """The answer to one request."""

    def __init__(
        self, body: ChatBody, served: Served, prepared: Prepared, runs: Sequence[Running]
    ) -> None:
        self.body, self.served, self.runs = body, served, runs
        self.readers = [Reader(prepared.parser(), run) for run in runs]
        self._told = [0] * len(runs)  # tokens whose log-probabilities were given

    async def whole(self) -> dict[str, Any]:
        """All answers at once."""
        async for part in merged(self.runs):
            self.readers[part.choice].deltas(part)
        choices = []
        for i, reader in enumerate(self.readers):
            choice: dict[str, Any] = {
                "index": i,
                "message": reader.gathered.message(),
                "finish_reason": reader.finish_reason,
                "logprobs": None,
            }
            if self.body.logprobs:
                choice["logprobs"] = chat_logprobs(reader.request.logprobs or [])
            choices.append(choice)
        requests = [reader.request for reader in self.readers]
        return {
            **header("chat.completion", "chatcmpl", self.served.name),
            "choices": choices,
            "usage": usage(requests, self.body.n),
            "timings": timings(requests[0]),
        }

    async def events(self) -> AsyncIterator[bytes]:
        """Answers as they come."""
        begin = header("chat.completion.chunk", "chatcmpl", self.served.name)
        left = len(self.runs)
        try:
            for i in range(len(self.runs)):
                delta = {"role": "assistant", "content": ""}
                yield sse({**begin, "choices": [_choice(i, delta)]})
            async for part in merged(self.runs):
                left -= part.finished and not self.runs[part.choice].failed
                events = b"".join([sse({**begin, **event}) for event in self._events(part)])
                yield events if left else Last(events + stream_end(self.body, self.runs, begin))
        finally:
            for run in self.runs:
                run.cancel()

    def _events(self, part: Part) -> Iterable[dict[str, Any]]:
        i, first = part.choice, True
        reader = self.readers[i]
        for delta in openai_deltas(reader, reader.deltas(part)):
            choice = _choice(i, delta)
            if first:
                self._add_tokens(choice, i, part)
                first = False
            timed = {"timings": timings(reader.request)} if self.body.timings_per_token else {}
            yield {"choices": [choice], **timed}
        if part.finished:
            choice = _choice(i, {}, reader.finish_reason)
            if first:
                self._add_tokens(choice, i, part)
            yield {"choices": [choice], "timings": timings(reader.request)}

    def _add_tokens(self, choice: dict[str, Any], i: int, part: Part) -> None:
        """What is asked for besides text, of all tokens up to the end of the part."""
        request, last = self.runs[i].request, part.tokens[1]
        if self.body.logprobs:
            found = entries_of(request, (self._told[i], last))
            choice["logprobs"] = chat_logprobs(found)
        if self.body.return_tokens:
            choice["tokens"] = request.tokens[self._told[i] : last]
        if self.body.return_drafted:
            choice["drafted"] = part.pieces
        self._told[i] = last


def openai_deltas(reader: Reader, deltas: Iterable[Delta]) -> Iterable[dict[str, Any]]:
    """OpenAI's `delta` objects."""
    for delta in deltas:
        if isinstance(delta, Content):
            yield {"content": delta.text}
        elif isinstance(delta, Reasoning):
            yield {"reasoning_content": delta.text}
        elif isinstance(delta, CallStart):
            called = reader.gathered.calls[delta.index]
            yield _call_delta(delta.index, "", id=called.id, name=delta.name)
        elif isinstance(delta, CallArguments):
            yield _call_delta(delta.index, delta.text)


def _call_delta(index: int, arguments: str, id: str = "", name: str = "") -> dict[str, Any]:
    """A part of a call; its id and name come once."""
    function = {"name": name, "arguments": arguments} if name else {"arguments": arguments}
    first = {"id": id, "type": "function"} if name else {}
    return {"tool_calls": [{"index": index, **first, "function": function}]}


def _choice(i: int, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"index": i, "delta": delta, "logprobs": None, "finish_reason": reason}
