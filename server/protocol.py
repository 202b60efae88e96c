"""HTTP on a connection, with bounds for what clients leave unfinished."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Bytes of a request's first line and headers. Browsers send some KB; what has no end would fill
# memory, and be joined again and again meanwhile.
MOST_HEAD = 1 << 18
# Seconds for a request's head, and between two pieces of its body: connections that say nothing
# would be held for ever, and a process has only so many.
PATIENCE = 60.0


class BoundedRequests(HttpToolsProtocol):
    """Refuses requests whose head does not end, and leaves clients that stop in one."""

    _inside, _head = False, 0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A client has come."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has left."""
        self._stop()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A head begins."""
        self._inside, self._head = True, 0
        self._wait()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """It has ended."""
        self._inside = False
        self._wait()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self._wait()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The body has ended; what follows is the server's time."""
        self._stop()
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        """More of the connection's bytes."""
        super().data_received(data)
        if not self._inside:
            return
        self._head += len(data)
        if self._head > MOST_HEAD and not self.transport.is_closing():
            self.send_400_response("The request's head is too long.")

    def _wait(self) -> None:
        self._stop()
        self._timer = self.loop.call_later(PATIENCE, self._give_up)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        if self.flow is not None and self.flow.read_paused:
            self._wait()  # the server has not read what is there
        elif self._inside:
            self.send_400_response("The request's head did not end in time.")
        elif not self.transport.is_closing():
            self.transport.close()
