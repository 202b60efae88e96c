"""Requests and responses: bodies within limits, answers that end when nobody waits for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import PydanticSerializationError, from_json, to_json
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Send

from .failures import ApiError, bad_request

JSON, SSE, NDJSON = "application/json", "text/event-stream", "application/x-ndjson"
QUIET = 10.0  # seconds; what stands between client and server may close what is quiet for 30
LINGER = 5.0  # seconds for which a body that was refused is read on


@dataclass
class Answer:
    """A whole response: bytes, or anything that JSON can hold."""

    content: Any
    status: int = 200
    media_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)

    def encoded(self) -> bytes:
        """The body."""
        return self.content if isinstance(self.content, bytes) else encode(self.content)


class Last(bytes):
    """A part behind which none comes, so that it ends the response with the same write."""


@dataclass
class Stream:
    """A response in parts. Each is sent as it comes; when the client has gone, `parts` is closed.
    failed: the last part for an exception that comes in the middle; ping: a part that is sent where
    nothing else is for `quiet` seconds, empty for none."""

    parts: AsyncIterator[bytes]
    failed: Callable[[BaseException], bytes]
    media_type: str = SSE
    ping: bytes = b""
    quiet: float = QUIET


def encode(value: Any) -> bytes:
    """JSON in UTF-8. Numbers that JSON does not have become null, half characters U+FFFD."""
    try:
        return to_json(value, inf_nan_mode="null")
    except (PydanticSerializationError, UnicodeEncodeError):
        return to_json(_clean(value), inf_nan_mode="null")


def _clean(value: Any) -> Any:
    """The value without half characters."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value


def sse(value: Any, event: str = "") -> bytes:
    """A server-sent event."""
    name = f"event: {event}\ndata: " if event else "data: "
    return b"%b%b\n\n" % (name.encode(), encode(value))


def ndjson(value: Any) -> bytes:
    """A line of JSON."""
    return encode(value) + b"\n"


async def read_body(request: Request, most: int) -> bytes:
    """The body, of at most so many bytes. Raises ApiError for a longer one, before all of it is
    there, and ClientDisconnect."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > most:
        raise _too_large(most)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise _too_large(most)
        parts.append(part)
    return b"".join(parts)


def _too_large(most: int) -> ApiError:
    return ApiError(
        413,
        f"the request's body should have at most {most} bytes; see --max-body",
        code="request_too_large",
        headers={"Connection": "close"},
    )


def parse_json(body: bytes) -> dict[str, Any]:
    """The object that a body holds. Raises ApiError."""
    try:
        found = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise bad_request(f"the body should be a JSON object in UTF-8: {error}") from None
    if not isinstance(found, dict):
        raise bad_request(f"the body should be a JSON object, got {type(found).__name__}")
    return found


async def until_gone(receive: Receive, work: Awaitable[None]) -> None:
    """Wait for work, and cancel it when the client closes its connection."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.result()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_answer(send: Send, answer: Answer, head_only: bool = False) -> None:
    """Send a whole response."""
    body = await _begin(send, answer)
    await send({"type": "http.response.body", "body": b"" if head_only else body})


async def send_early(send: Send, answer: Answer, receive: Receive) -> None:
    """Send a whole response while the request's body still comes. That is read on and forgotten
    for some seconds: a client that sends all of it before it reads would find its connection reset
    instead of the response."""
    body = await _begin(send, answer)
    await send({"type": "http.response.body", "body": body, "more_body": True})
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(_pass_over(receive), LINGER)
    await send({"type": "http.response.body", "body": b""})


async def _begin(send: Send, answer: Answer) -> bytes:
    """Send a response's head. Returns its body."""
    body = answer.encoded()
    headers = {"Content-Type": answer.media_type, "Content-Length": str(len(body))}
    await _start(send, answer.status, {**headers, **answer.headers})
    return body


async def _pass_over(receive: Receive) -> None:
    """Until a request's body, or its connection, has ended."""
    more = True
    while more:
        more = (await receive()).get("more_body", False)


async def send_stream(send: Send, stream: Stream) -> None:
    """Send a response part by part. Whatever happens, `stream.parts` is closed behind it."""
    headers = {"Content-Type": stream.media_type, "Cache-Control": "no-cache"}
    count, ended = _Count(), False
    pinging: asyncio.Task[None] | None = None
    try:
        await _start(send, 200, {**headers, "X-Accel-Buffering": "no"})
        if stream.ping:
            pinging = asyncio.create_task(_ping(send, stream, count))
        try:
            async for part in stream.parts:
                if part:
                    count.parts += 1
                    ended = isinstance(part, Last)
                    if ended and pinging is not None:
                        pinging.cancel()
                    await send({"type": "http.response.body", "body": part, "more_body": not ended})
        except (OSError, ClientDisconnect):
            raise
        except Exception as error:
            part = stream.failed(error)
            await send({"type": "http.response.body", "body": part, "more_body": True})
        if pinging is not None:
            pinging.cancel()
        if not ended:
            await send({"type": "http.response.body", "body": b""})
    finally:
        if pinging is not None:
            pinging.cancel()
        close = getattr(stream.parts, "aclose", None)
        if close is not None:
            await close()


@dataclass
class _Count:
    """Parts that were sent."""

    parts: int = 0


async def _ping(send: Send, stream: Stream, count: _Count) -> None:
    """Send a stream's ping again and again where nothing else was sent for some seconds."""
    message = {"type": "http.response.body", "body": stream.ping, "more_body": True}
    while True:
        before = count.parts
        await asyncio.sleep(stream.quiet)
        if before == count.parts:
            with contextlib.suppress(OSError, ClientDisconnect):
                await send(message)


async def _start(send: Send, status: int, headers: Mapping[str, str]) -> None:
    raw: Sequence[tuple[bytes, bytes]] = [
        (key.lower().encode("latin-1"), value.encode("latin-1")) for key, value in headers.items()
    ]
    await send({"type": "http.response.start", "status": status, "headers": raw})
