"""Endpoints: one file of `endpoints/` defines one or a few, and each registers itself.

    @endpoint("/v1/things", Things, summary="What it answers.")
    async def things(call: Call[Things]) -> Answer | Stream: ...

makes the route, the check of bodies against the pydantic model, and the entry of /openapi.json."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from starlette.requests import Request

from .failures import Shape, openai_error
from .http import Answer, Stream
from .wire.body import Body

if TYPE_CHECKING:
    from .served import Served
    from .service import Service

B = TypeVar("B", bound=Body)


@dataclass
class Call(Generic[B]):
    """A request as an endpoint gets it. body: checked; of GET requests an empty one."""

    service: Service
    request: Request
    body: B
    used: list[Served] = field(default_factory=list)

    async def model(self, name: str | None) -> Served:
        """The model of a name, None for the main one; it stays loaded until the request is over.
        Raises ApiError for a name that there is not, and what loading raises."""
        found = await self.service.store.get(name)
        self.used.append(found)
        return found

    def leave(self) -> None:
        """The request is over."""
        while self.used:
            served = self.used.pop()
            served.users -= 1


Handler = Callable[[Any], Awaitable[Answer | Stream]]


@dataclass(frozen=True)
class Endpoint:
    """body: the model of what is sent, None where nothing is; error: how errors look; public:
    answered without an API key."""

    path: str
    methods: tuple[str, ...]
    handler: Handler
    body: type[Body] | None
    summary: str
    error: Shape
    public: bool


ENDPOINTS: dict[tuple[str, str], Endpoint] = {}


def endpoint(
    path: str,
    body: type[Body] | None = None,
    *,
    summary: str,
    methods: tuple[str, ...] = (),
    error: Shape = openai_error,
    public: bool = False,
) -> Callable[[Handler], Handler]:
    """Register a handler for a path; POST where there is a body, else GET. Raises ValueError for
    one that is taken."""

    def register(handler: Handler) -> Handler:
        wanted = methods or (("POST",) if body else ("GET",))
        made = Endpoint(path, wanted, handler, body, summary, error, public)
        for method in wanted:
            if ENDPOINTS.setdefault((path, method), made) is not made:
                raise ValueError(f"two endpoints answer {method} {path}")
        return handler

    return register


def scan_endpoints() -> list[Endpoint]:
    """All endpoints, each once, by path."""
    for path in sorted((Path(__file__).parent / "endpoints").glob("*.py")):
        import_module(f".endpoints.{path.stem}", __package__)
    return [made for _, made in sorted(ENDPOINTS.items()) if made is not None]
