"""The socket that a server listens on."""

from __future__ import annotations

import asyncio
import socket

import pytest
from riverrun.server.options import ServerOptions
from riverrun.server.serving import listen


def has_loopback_of_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as tried:
            tried.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_pieces_of_an_answer_are_sent_at_once(host: str) -> None:
    """Not held back until the client has acknowledged what came before (Nagle's algorithm)."""
    if host == "::1" and not has_loopback_of_ipv6():
        pytest.skip("this machine has no loopback address of IPv6")
    listening = listen(ServerOptions(host=host, port=0))

    async def without_delay() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted = writer.get_extra_info("socket")
            found.set_result(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        async with await asyncio.start_server(accept, sock=listening):
            _, writer = await asyncio.open_connection(*listening.getsockname()[:2])
            writer.close()
            return await asyncio.wait_for(found, 60)

    assert asyncio.run(without_delay()) != 0
