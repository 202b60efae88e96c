"""Who may ask: API keys, and which pages and names a browser may come from."""

from __future__ import annotations

import hmac
import ipaddress
from urllib.parse import urlsplit

from starlette.requests import Request

from .failures import ApiError
from .options import ServerOptions

_LOCAL = ("localhost", "127.0.0.1", "::1")


class Safety:
    """The checks of one server."""

    def __init__(self, options: ServerOptions) -> None:
        self._keys = [key.strip().encode() for key in options.api_keys]
        self._origins = options.allowed_origins
        self._hosts = self._names(options)

    def check(self, request: Request, public: bool) -> None:
        """Raise ApiError for a request that is not to be answered. public: no key is needed."""
        self._check_host(request)
        self._check_origin(request)
        if self._keys and not public:
            self._check_key(request)

    @staticmethod
    def _names(options: ServerOptions) -> set[str] | None:
        """Hosts that requests may name; None for any. On a loopback address only what belongs to
        it: a page elsewhere may have its name resolve to this machine."""
        named = {name.lower() for name in options.allowed_hosts}
        if "*" in named or (not named and not is_loopback(options.host)):
            return None
        return {*_LOCAL, options.host.lower(), *named}

    def _check_host(self, request: Request) -> None:
        host = _host_of(request.headers.get("host", ""))
        if self._hosts is None or not host or host in self._hosts or is_address(host):
            return
        raise ApiError(
            403,
            f"the Host header names {host!r}, which is not a name of this server; see "
            "--allowed-host",
            "permission_error",
        )

    def _check_origin(self, request: Request) -> None:
        origin = request.headers.get("origin")
        if origin is None or "*" in self._origins or origin in self._origins:
            return
        if urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower():
            return
        raise ApiError(
            403,
            f"requests from {origin[:100]!r} are not allowed; see --cors-origin",
            "permission_error",
        )

    def _check_key(self, request: Request) -> None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            given = request.headers.get("x-api-key", "")
        # All are compared, so that the time does not tell which of them is near.
        found = [hmac.compare_digest(given.strip().encode(), key) for key in self._keys]
        if not any(found):
            raise ApiError(
                401,
                "a valid API key is needed, as Authorization: Bearer KEY",
                "authentication_error",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_address(host: str) -> bool:
    """Whether this is an IP address, which no name server can make mean another."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _host_of(header: str) -> str:
    """A Host header without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.rpartition(":")[0].lower() if ":" in header else header.lower()
