"""A server process: its socket, its signals, its end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from typing import Any

import uvicorn

from .app import make_app
from .logs import log_as
from .long_lived import passing_over
from .options import ServerOptions
from .protocol import BoundedRequests
from .service import Service

# Seconds for which a thread keeps Python to itself while another waits: between passes the engine
# must not wait as long as the default lets the event loop go on.
_SWITCH = 0.0005
_BACKLOG = 2048


def listen(options: ServerOptions) -> socket.socket:
    """The socket that the server listens on. Raises OSError naming the address, such as for a port
    that is in use."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    # With the protocol's name, as asyncio sends without delay on sockets that it knows to be TCP.
    # Otherwise the first piece of an answer waits for the client to acknowledge the headers, 40 ms
    # on a connection that was used before.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((options.host, options.port))
        found.listen(_BACKLOG)
    except OSError as error:
        found.close()
        where = f"{options.host}:{options.port}"
        raise OSError(error.errno, error.strerror or str(error), where) from None
    return found


def serve(service: Service, listening: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT, then let running requests end for `drain` seconds; a second
    signal ends at once. Prints "listening on http://HOST:PORT" to standard error when models are
    loaded. Raises what loading the main model raises."""
    options = service.options
    log_as(options.log_format)
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH)
    try:
        with passing_over():
            asyncio.run(_serve(service, listening))
    finally:
        sys.setswitchinterval(before)


class _Server(uvicorn.Server):
    """Signals are this module's own, for uvicorn's raise them again in the end."""

    def capture_signals(self) -> Any:
        """Nothing."""
        return contextlib.nullcontext()


async def _serve(service: Service, listening: socket.socket) -> None:
    config = uvicorn.Config(
        make_app(service, opened=True),
        log_config=None,
        access_log=False,
        lifespan="off",
        http=BoundedRequests,
        timeout_graceful_shutdown=max(1, round(service.options.drain)),
        server_header=False,
    )
    server = _Server(config)

    def stop() -> None:
        server.force_exit = server.should_exit
        server.should_exit = True

    try:
        await service.open()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop)
        announcing = asyncio.create_task(_announce(server, listening))
        await server.serve([listening])
        announcing.cancel()
    finally:
        listening.close()
        await service.close()


async def _announce(server: uvicorn.Server, listening: socket.socket) -> None:
    while not server.started:
        await asyncio.sleep(0.01)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(f"listening on http://{shown}:{port}", file=sys.stderr, flush=True)
