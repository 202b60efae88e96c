"""/: a page to chat at. Its files lie in `server/page/` and need nothing from elsewhere."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from starlette.requests import Request

from ..endpoint import Call, endpoint
from ..failures import ApiError
from ..http import Answer
from ..wire.body import Nothing

FOLDER = Path(__file__).parent.parent / "page"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'"
)


@endpoint("/", summary="A page to chat at.", public=True)
async def index(call: Call[Nothing]) -> Answer:
    """The page."""
    return _file("index.html", call.request)


@endpoint("/page/{name}", summary="A file of that page.", public=True)
async def part(call: Call[Nothing]) -> Answer:
    """A script, style or picture."""
    return _file(call.request.path_params["name"], call.request)


@cache
def files() -> dict[str, tuple[bytes, str, str]]:
    """The files that are given out: content, media type and entity tag by name."""
    found = {}
    for path in sorted(FOLDER.iterdir()):
        if path.suffix in TYPES:
            content = path.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            found[path.name] = (content, TYPES[path.suffix], tag)
    return found


def _file(name: str, request: Request) -> Answer:
    """A file, or word that the browser's copy is still the same. Raises ApiError for no file."""
    if name not in files():
        raise ApiError(404, f"there is nothing at {request.url.path}", "not_found_error")
    content, kind, tag = files()[name]
    headers = {
        "Content-Security-Policy": POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
        "ETag": tag,
    }
    known = [each.strip() for each in request.headers.get("if-none-match", "").split(",")]
    if tag in known or f"W/{tag}" in known:
        return Answer(b"", 304, kind, headers)
    return Answer(content, media_type=kind, headers=headers)
