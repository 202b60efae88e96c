"""Answers as Ollama has them: objects with times, whole or one a line."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from ..engine.request import Request
from ..models.chat.output import CallEnd, Content, Delta, Reasoning
from .answers import Called, Reader
from .choices import entries_of, finish_reason
from .endpoint import Call
from .facts import knows_thinking
from .failures import as_api_error, bad_request, ollama_error
from .http import NDJSON, Answer, Stream, ndjson
from .served import Part, Running, Served

FOREVER = "9999-12-31T23:59:59Z"


def stamp(seconds: float | None = None) -> str:
    """A time in seconds since 1970 as text, by default the present."""
    when = datetime.fromtimestamp(time.time() if seconds is None else seconds, timezone.utc)
    return when.isoformat().replace("+00:00", "Z")


class Use:
    """A model that a request uses, and since when. seconds: of loading it."""

    def __init__(self, served: Served, began: float) -> None:
        self.served, self.began = served, began
        self.seconds = time.monotonic() - began

    def times(self) -> dict[str, int]:
        """How long all of the request has taken, and loading, in nanoseconds."""
        return {
            "total_duration": int(1e9 * (time.monotonic() - self.began)),
            "load_duration": int(1e9 * self.seconds),
        }

    def check_context(self, n_ctx: int | None) -> None:
        """Raise ApiError for a context longer than the one that is served."""
        if n_ctx is not None and n_ctx > self.served.n_ctx:
            raise bad_request(
                f"options.num_ctx: this server's context has {self.served.n_ctx} tokens, got "
                f"{n_ctx}; start it with -c {n_ctx}",
                "options",
            )


async def use(call: Call[Any]) -> Use:
    """The model that a body names, loaded, which then stays for as long as the body says. Raises
    what `Call.model` raises, and ApiError for a context longer than the one that is served."""
    began = time.monotonic()
    served = await call.model(call.body.model)
    served.keep_alive = call.body.keep_alive
    found = Use(served, began)
    found.check_context(call.body.options.num_ctx)
    return found


async def load_or_unload(call: Call[Any]) -> dict[str, Any]:
    """What a request without a prompt asks for: the model is loaded, or unloaded where it is to
    stay for no time. Raises ApiError for one that always stays."""
    began, store = time.monotonic(), call.service.store
    if call.body.keep_alive != 0:
        used = await use(call)
        return {**_head(used.served.name), "done": True, "done_reason": "load", **used.times()}
    known = store.find(call.body.model)
    if known.fixed:
        raise bad_request(f"{known.name} is this server's main model, which stays loaded")
    served = store.of(known.name)
    if served is not None:
        served.keep_alive = 0.0
        await store.unload_old()
    took = int(1e9 * (time.monotonic() - began))
    return {**_head(known.name), "done": True, "done_reason": "unload", "total_duration": took}


def answer_one(body: Any, found: Mapping[str, Any]) -> Answer:
    """An answer that is a single object, in the form that the body asks for."""
    if body.stream is False:
        return Answer(found)
    return Answer(ndjson(found), media_type=NDJSON)


def check_thinking(served: Served, body: Any) -> None:
    """Raise ApiError for reasoning asked of a model whose template knows nothing of it."""
    templates = served.model.source.chat_templates.sources.values()
    if body.think and not any(map(knows_thinking, templates)):
        raise bad_request(f"think: {served.name} does not support thinking", "think")


def log_of(body: Any) -> int | None:
    """How many log-probabilities of each token are wanted, None for none. Raises ApiError."""
    if body.top_logprobs and not body.logprobs:
        raise bad_request("top_logprobs: needs logprobs: true", "top_logprobs")
    return body.top_logprobs or 0 if body.logprobs else None


def most_tokens(n: int | None) -> int:
    """`num_predict` as the engine has it: any that is negative means as many as fit."""
    return -1 if n is None or n < 0 else n


class Writer:
    """The answer to one request. shape: the fields that tell text, reasoning and calls; context:
    the fields of the last object."""

    def __init__(
        self,
        body: Any,
        used: Use,
        reader: Reader,
        shape: Callable[[str, str, list[dict[str, Any]]], dict[str, Any]],
        context: Callable[[Request], dict[str, Any]] | None = None,
    ) -> None:
        self.body, self.used, self.reader = body, used, reader
        self.run: Running = reader.run
        self._shape, self._context = shape, context
        self._told = 0  # tokens whose log-probabilities were given

    async def answer(self) -> Answer | Stream:
        """In the form that the body asks for."""
        if self.body.stream is False:
            return Answer(await self.whole())
        return Stream(self.lines(), _broken, NDJSON)

    async def whole(self) -> dict[str, Any]:
        """All at once."""
        try:
            async for part in self.run.parts():
                self.reader.deltas(part)
        finally:
            self.run.cancel()
        gathered = self.reader.gathered
        calls = [call_object(i, call) for i, call in enumerate(gathered.calls) if call.ended]
        found = self._shape(gathered.content, gathered.reasoning, calls)
        last = len(self.run.request.tokens)
        return {**self._begin(found), **self._logprobs(last), **self._end()}

    async def lines(self) -> AsyncIterator[bytes]:
        """As it comes."""
        try:
            async for part in self.run.parts():
                deltas = self.reader.deltas(part)
                yield b"".join(map(ndjson, self._objects(deltas, part)))
        finally:
            self.run.cancel()

    def _objects(self, deltas: Sequence[Delta], part: Part) -> list[dict[str, Any]]:
        """The lines of a part; log-probabilities stand in the first of them."""
        shown = [self._begin(found) for found in map(self._told_by, deltas) if found is not None]
        for found in shown:
            found["done"] = False
        if part.finished:
            shown.append({**self._begin(self._shape("", "", [])), **self._end()})
        if shown:
            shown[0] |= self._logprobs(part.tokens[1])
        return shown

    def _told_by(self, delta: Delta) -> dict[str, Any] | None:
        if isinstance(delta, Content):
            return self._shape(delta.text, "", [])
        if isinstance(delta, Reasoning):
            return self._shape("", delta.text, [])
        if isinstance(delta, CallEnd):
            called = self.reader.gathered.calls[delta.index]
            return self._shape("", "", [call_object(delta.index, called)])
        return None

    def _begin(self, found: dict[str, Any]) -> dict[str, Any]:
        return {**_head(self.used.served.name), **found}

    def _logprobs(self, last: int) -> dict[str, Any]:
        if not self.body.logprobs:
            return {}
        entries = entries_of(self.run.request, (self._told, last))
        self._told = last
        return {"logprobs": [{**_named(e), "top_logprobs": _tops(e)} for e in entries]}

    def _end(self) -> dict[str, Any]:
        request = self.run.request
        timings = request.timings
        return {
            "done": True,
            "done_reason": finish_reason(request),
            **(self._context(request) if self._context else {}),
            **self.used.times(),
            "prompt_eval_count": len(request.prompt),
            "prompt_eval_duration": int(1e6 * timings.prompt_ms),
            "eval_count": timings.predicted_n,
            "eval_duration": int(1e6 * timings.predicted_ms),
        }


def call_object(index: int, called: Called) -> dict[str, Any]:
    """A tool call. Raises ApiError where its arguments are no JSON object."""
    function = {"index": index, "name": called.name, "arguments": called.values()}
    return {"id": called.id, "function": function}


def _head(name: str) -> dict[str, Any]:
    return {"model": name, "created_at": stamp()}


def _tops(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [_named(each) for each in entry["top"]]


def _named(entry: Mapping[str, Any]) -> dict[str, Any]:
    logprob = max(entry["logprob"], -1e4)
    return {"token": entry["text"], "logprob": logprob, "bytes": entry["bytes"]}


def _broken(error: BaseException) -> bytes:
    return ndjson(ollama_error(as_api_error(error)))
