"""The ASGI application: routes, checks, and errors that end a request alone."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from .endpoint import Call, Endpoint, scan_endpoints
from .failures import ApiError, Shape, as_api_error, openai_error
from .http import (
    Answer,
    Stream,
    parse_json,
    read_body,
    send_answer,
    send_early,
    send_stream,
    until_gone,
)
from .logs import log
from .safety import Safety
from .service import Service
from .wire.body import Nothing


class Dispatch:
    """One path: checks a request, has it answered, and answers its errors. An ASGI application."""

    def __init__(self, service: Service, safety: Safety, found: dict[str, Endpoint]) -> None:
        """found: the endpoint of each method."""
        self.service, self._safety, self._found = service, safety, found

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        method = "GET" if request.method == "HEAD" else request.method
        chosen = self._found.get(method)
        if chosen is None:
            allowed = ", ".join(self._found)
            error = ApiError(
                405, f"{request.url.path} takes {allowed}, got {method}", headers={"Allow": allowed}
            )
            await send_answer(send, _error_answer(error, openai_error))
            return
        status = Status(send)
        with contextlib.suppress(ClientDisconnect):
            await self._answer(chosen, request, receive, status)
        self.service.metrics.answers.labels(chosen.path, status.code or 499).inc()
        log(request.method, path=request.url.path, status=status.code or "gone")

    async def _answer(
        self, chosen: Endpoint, request: Request, receive: Receive, send: Status
    ) -> None:
        call: Call[Any] | None = None
        try:
            self._safety.check(request, chosen.public)
            call = Call(self.service, request, await self._body(chosen, request))
            await until_gone(receive, self._run(chosen, call, send))
        except (ClientDisconnect, OSError):
            raise ClientDisconnect() from None
        except Exception as error:
            if send.code:
                log("an answer broke off", error=f"{type(error).__name__}: {error}")
                return
            known = _known(error)
            answer = _error_answer(known, chosen.error)
            if known.status == 413:
                await send_early(send, answer, receive)
            else:
                await send_answer(send, answer)
        finally:
            if call is not None:
                call.leave()

    async def _body(self, chosen: Endpoint, request: Request) -> Any:
        if chosen.body is None:
            return Nothing()
        body = await read_body(request, int(self.service.options.max_body * (1 << 20)))
        return chosen.body.model_validate(parse_json(body))

    async def _run(self, chosen: Endpoint, call: Call[Any], send: Status) -> None:
        try:
            answer = await chosen.handler(call)
        except Exception as error:
            answer = _error_answer(_known(error), chosen.error)
        if isinstance(answer, Stream):
            await send_stream(send, answer)
        else:
            await send_answer(send, answer, head_only=call.request.method == "HEAD")


class Status:
    """What is sent, and the status that it began with; 0 before that."""

    def __init__(self, send: Send) -> None:
        self._send, self.code = send, 0

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.code = message["status"]
        await self._send(message)


def _known(error: Exception) -> ApiError:
    """The answer to an exception; one that nobody has foreseen is logged."""
    found = as_api_error(error)
    if found.status == 500:
        log("an answer failed", error=f"{type(error).__name__}: {error}")
    return found


def _error_answer(error: ApiError, shape: Shape) -> Answer:
    return Answer(shape(error), error.status, headers=error.headers)


def make_app(service: Service, opened: bool = False) -> ASGIApp:
    """The application. opened: the caller opens the service and closes it; else the application
    does, on startup and shutdown. It is a bare router: paths answer their errors themselves, and
    what stands in between costs every part of every stream."""
    safety = Safety(service.options)
    by_path: dict[str, dict[str, Endpoint]] = {}
    for made in scan_endpoints():
        for method in made.methods:
            by_path.setdefault(made.path, {})[method] = made
    routes = [Route(path, Dispatch(service, safety, found)) for path, found in by_path.items()]

    @contextlib.asynccontextmanager
    async def lifespan(app: Router) -> AsyncIterator[None]:
        if opened:
            yield
            return
        await service.open()
        try:
            yield
        finally:
            await service.close()

    app = Router(routes, default=_not_found, lifespan=lifespan)
    origins = service.options.allowed_origins
    if not origins:
        return app
    # Other pages are answered only where that is allowed.
    return CORSMiddleware(app, list(origins), allow_methods=["*"], allow_headers=["*"])


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    found = ApiError(404, f"there is nothing at {scope['path']}", "not_found_error")
    await send_answer(send, _error_answer(found, openai_error))
