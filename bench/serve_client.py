"""A client of OpenAI-compatible servers that keeps the times of what it gets."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any

from ..graph.errors import RequestError, ServerError
from .event_stream import EventStream

APIS = ("completions", "chat")
_PATHS = {"completions": "/completions", "chat": "/chat/completions"}
_SHOWN = 200  # characters of what a server says
Body = dict[str, Any]


@dataclass
class Reply:
    """A streamed answer. began: when it was due, in seconds of time.perf_counter; group: what its
    prompt was to have of tokens; events: when those with text came; text: all of it; usage and
    timings: as the server sent them, at its end; finish: the finish_reason; error: its kind, "" for
    none; message: what the server or the connection said of it; status: of HTTP, 0 for none."""

    began: float
    group: int = 0
    events: list[float] = field(default_factory=list)
    text: str = ""
    usage: Body = field(default_factory=dict)
    timings: Body = field(default_factory=dict)
    finish: str = ""
    error: str = ""
    message: str = ""
    status: int = 0
    ended: float = 0.0

    @property
    def first_ms(self) -> float | None:
        """Milliseconds to the first event with text, None for none."""
        return 1e3 * (self.events[0] - self.began) if self.events else None

    @property
    def gaps_ms(self) -> list[float]:
        """Milliseconds between events with text."""
        pairs = zip(self.events, self.events[1:], strict=False)
        return [1e3 * (later - earlier) for earlier, later in pairs]

    @property
    def prompt_n(self) -> int:
        """Tokens of the prompt as the server counted them, cached ones included."""
        counted = self.timings.get("prompt_n", 0) + self.timings.get("cache_n", 0)
        return int(self.usage.get("prompt_tokens") or counted)

    @property
    def predicted_n(self) -> int:
        """Tokens generated as the server counted them, or else events with text."""
        counted = self.timings.get("predicted_n", len(self.events))
        return int(self.usage.get("completion_tokens") or counted)

    def fail(self, kind: str, message: object) -> None:
        """It ended with an error."""
        self.error, self.message = kind, str(message)[:_SHOWN]

    def take(self, data: str, now: float) -> None:
        """The data of an event that came at `now`."""
        if data == "[DONE]":
            return
        try:
            event = json.loads(data)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            self.fail("bad data", data)
        elif event.get("error"):
            self.fail("error in the stream", _message(event) or event["error"])
        else:
            self._take_event(event, now)

    def _take_event(self, event: Body, now: float) -> None:
        self.usage = event.get("usage") or self.usage
        self.timings = event.get("timings") or self.timings
        for choice in event.get("choices") or ():
            self.finish = choice.get("finish_reason") or self.finish
            text = _text(choice)
            if text:
                self.events.append(now)
                self.text += text


class Client:
    """Connections to a server, for as long as its block lasts: each request has one to itself.

    url: with or without the /v1 of OpenAI's paths; timeout: seconds without a sign of life."""

    def __init__(self, url: str, api_key: str = "", timeout: float = 600.0) -> None:
        """Raises RequestError for what is no URL, and where httpx is missing."""
        httpx = _httpx()
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL:
            parsed = httpx.URL("")
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise RequestError(f"expected http://HOST[:PORT] or https://HOST, got {url!r}", "url")
        base = str(parsed).rstrip("/")
        headers = {"Accept-Encoding": "identity"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        self.url = base if base.endswith("/v1") else f"{base}/v1"
        # One for all, and without certificates where they would be loaded for nothing.
        context = httpx.create_ssl_context(verify=parsed.scheme == "https")
        self._open = partial(
            httpx.AsyncClient, headers=headers, timeout=httpx.Timeout(timeout), verify=context
        )
        # A pool of httpx asks all of its connections whenever a request begins or ends, so that
        # many clients at once would wait for that and not for the server.
        self._opened: list[Any] = []
        self._idle: list[Any] = []

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for connection in self._opened:
            await connection.aclose()

    def reserve(self, n: int) -> None:
        """Make ready for n requests at a time."""
        while len(self._opened) < n:
            self._opened.append(self._open())
            self._idle.append(self._opened[-1])

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        """One that nobody else uses within the block, the one used last."""
        if not self._idle:
            self.reserve(len(self._opened) + 1)
        connection = self._idle.pop()
        try:
            yield connection
        finally:
            self._idle.append(connection)

    async def model(self) -> str:
        """The first model that the server lists. Raises ServerError."""
        reply = await self._ask("GET", "/models")
        names = [str(each.get("id", "")) for each in reply.get("data") or ()]
        if not names or not names[0]:
            raise ServerError(f"{self.url}/models lists no model; name one (--served-model)")
        return names[0]

    async def count(self, api: str, body: Body) -> int:
        """Tokens of a prompt, from the usage of an answer that is not streamed. Raises
        ServerError."""
        reply = await self._ask("POST", _PATHS[api], body)
        usage = reply.get("usage") or {}
        if not isinstance(usage.get("prompt_tokens"), int):
            raise ServerError(f"{self.url}{_PATHS[api]} gave no usage.prompt_tokens to count by")
        return usage["prompt_tokens"]

    async def stream(self, api: str, body: Body, due: float | None = None) -> Reply:
        """A streamed answer; errors are kept in it. due: its beginning, None for now."""
        httpx = _httpx()
        reply = Reply(time.perf_counter() if due is None else due)
        try:
            await self._stream(_PATHS[api], {**body, "stream": True}, reply)
        except httpx.TimeoutException as error:
            reply.fail("timeout", type(error).__name__)
        except httpx.ConnectError as error:
            reply.fail("no connection", error)
        except httpx.HTTPError as error:
            reply.fail("broken connection", error or type(error).__name__)
        reply.ended = time.perf_counter()
        return reply

    async def accepted(self, api: str, body: Body, choices: Iterable[Body]) -> Body:
        """The first of these additions to a body with which a server answers it. Raises
        ServerError where it answers none."""
        reply = Reply(0.0)
        for added in choices:
            reply = await self.stream(api, {**body, **added})
            if reply.status not in (400, 422):
                break
        if reply.error:
            raise ServerError(f"{self.url}{_PATHS[api]}: {reply.error}: {reply.message}")
        return added

    async def _stream(self, path: str, body: Body, reply: Reply) -> None:
        with self._connection() as connection:
            await self._read(connection.stream("POST", self.url + path, json=body), reply)

    async def _read(self, opening: AbstractAsyncContextManager[Any], reply: Reply) -> None:
        async with opening as response:
            reply.status = response.status_code
            if response.status_code != 200:
                reply.fail(f"HTTP {response.status_code}", _said(await response.aread()))
                return
            async for data in _events(response.aiter_bytes()):
                reply.take(data, time.perf_counter())
                if reply.error:
                    return
        if not reply.finish:
            reply.fail("cut short", "the stream ended without a finish_reason")

    async def _ask(self, method: str, path: str, body: Body | None = None) -> Body:
        httpx = _httpx()
        where = self.url + path
        try:
            with self._connection() as connection:
                response = await connection.request(method, where, json=body)
        except httpx.HTTPError as error:
            raise ServerError(f"{where}: {str(error) or type(error).__name__}") from None
        if response.status_code != 200:
            raise ServerError(f"{where}: HTTP {response.status_code}: {_said(response.content)}")
        try:
            reply = response.json()
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            raise ServerError(f"{where}: expected a JSON object, got {response.text[:_SHOWN]!r}")
        return reply


def request_body(api: str, model: str, prompt: str, n: int, **more: Any) -> Body:
    """What asks for n tokens behind a prompt: a text, or the only message of a chat."""
    asked: Body = {"prompt": prompt}
    if api == "chat":
        asked = {"messages": [{"role": "user", "content": prompt}]}
    return {"model": model, **asked, "max_tokens": n, **more}


async def _events(pieces: AsyncIterator[bytes]) -> AsyncIterator[str]:
    stream = EventStream()
    async for piece in pieces:
        for data in stream.feed(piece):
            yield data


def _text(choice: Body) -> str:
    """The text of a choice, reasoning included."""
    delta = choice.get("delta") or {}
    parts = [choice.get("text")]
    parts += [delta.get(name) for name in ("reasoning_content", "reasoning", "content")]
    return "".join(part for part in parts if isinstance(part, str))


def _said(content: bytes) -> str:
    """What a server says of an error: the message in it, or else how it begins."""
    text = content.decode("utf-8", "replace")
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    return ((_message(found) if isinstance(found, dict) else "") or text)[:_SHOWN]


def _message(body: Body) -> str:
    error = body.get("error")
    found = error.get("message") if isinstance(error, dict) else error
    return found if isinstance(found, str) else ""


def _httpx() -> Any:
    """The library. Raises RequestError where it is missing."""
    try:
        import httpx
    except ImportError:
        raise RequestError(
            "asking a server needs the httpx package: pip install 'riverrun[serve]'"
        ) from None
    return httpx
