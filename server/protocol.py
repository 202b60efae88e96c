"""HTTP on a connection, with a bound for heads of requests."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Bytes of a request's first line and headers. Browsers send some KB; what has no end would fill
# memory, and be joined again and again meanwhile.
MOST_HEAD = 1 << 18


class BoundedHeads(HttpToolsProtocol):
    """Refuses requests whose head does not end."""

    _inside, _head = False, 0

    def on_message_begin(self) -> None:
        """A head begins."""
        self._inside, self._head = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """It has ended."""
        self._inside = False
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """More of the connection's bytes."""
        super().data_received(data)
        if not self._inside:
            return
        self._head += len(data)
        if self._head > MOST_HEAD and not self.transport.is_closing():
            self.send_400_response("The request's head is too long.")
