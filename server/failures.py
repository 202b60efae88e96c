"""What is wrong with a request, or with the server, as each interface tells it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from ..graph.errors import OutOfMemory, RequestError, RiverrunError

_MOST_MESSAGE = 2000


class ApiError(Exception):
    """An answer that is an error. status: of HTTP; kind: OpenAI's `type`; param: the field that it
    is about; code: a word that programs can tell it by; more: further fields."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request_error",
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind = status, message[:_MOST_MESSAGE], kind
        self.param, self.code = param, code
        self.headers, self.more = dict(headers or {}), dict(more or {})


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A request that cannot be honoured as it stands."""
    return ApiError(400, message, param=param, code=code)


def overloaded(message: str, seconds: int = 1) -> ApiError:
    """No room at present; worth trying again in so many seconds."""
    return ApiError(
        503,
        message,
        "server_overloaded",
        code="overloaded",
        headers={"Retry-After": str(max(1, seconds))},
    )


def as_api_error(error: BaseException) -> ApiError:
    """What to answer for any exception."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ValidationError):
        return _of_validation(error)
    if isinstance(error, RequestError):
        return bad_request(str(error), error.argument or None)
    if isinstance(error, OutOfMemory):
        return ApiError(503, str(error), "server_error", code="out_of_memory")
    if isinstance(error, RiverrunError):
        return ApiError(500, str(error), "server_error")
    return ApiError(500, f"internal error: {type(error).__name__}: {error}", "server_error")


def _of_validation(error: ValidationError) -> ApiError:
    """The first fault, and where it is."""
    faults = error.errors(include_url=False, include_context=False, include_input=True)
    first = faults[0]
    where = ".".join(str(part) for part in first["loc"])
    got = "" if first["type"] == "missing" else f", got {_shown(first.get('input'))}"
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    name = str(first["loc"][0]) if first["loc"] else None
    message = first["msg"].removeprefix("Value error, ")
    return bad_request(f"{where + ': ' if where else ''}{message}{got}{more}", name)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def openai_error(error: ApiError) -> dict[str, Any]:
    """As the OpenAI API has it."""
    return {
        "error": {
            "message": error.message,
            "type": error.kind,
            "param": error.param,
            "code": error.code if error.code is not None else error.status,
            **error.more,
        }
    }


_ANTHROPIC = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def anthropic_error(error: ApiError) -> dict[str, Any]:
    """As the Anthropic API has it."""
    kind = _ANTHROPIC.get(error.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def ollama_error(error: ApiError) -> dict[str, Any]:
    """As Ollama has it."""
    return {"error": error.message}


Shape = Callable[[ApiError], dict[str, Any]]
