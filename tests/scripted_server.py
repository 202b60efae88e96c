"""A server on the loopback address that answers as it is told, for clients under test."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]


@dataclass(frozen=True)
class Said:
    """An answer: its parts are sent one by one; cut: the connection breaks off behind them;
    headers: further ones."""

    parts: Iterable[bytes]
    status: int = 200
    kind: str = "application/json"
    cut: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Scripted:
    """url: with which to reach it; asked: (path, body, headers) of each request, in order; gone:
    answers that the client did not wait for."""

    url: str
    gone: int = 0
    asked: list[tuple[str, Body, dict[str, str]]] = field(default_factory=list)


Script = Callable[[str, Body], Said]


class LoopbackServer(ThreadingHTTPServer):
    """On a free port of the loopback address; connections that come all at once wait their turn:
    beyond the five that the library lets wait, the system drops or resets them."""

    request_queue_size = 512

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)


def as_json(content: object, status: int = 200) -> Said:
    """One JSON text."""
    return Said([json.dumps(content).encode()], status)


def as_events(events: Iterable[object], done: bool = True, cut: bool = False) -> Said:
    """Server-sent events; objects as JSON, texts as they are."""
    parts = [e if isinstance(e, str) else json.dumps(e) for e in events]
    lines = [f"data: {part}\n\n".encode() for part in [*parts, *(["[DONE]"] if done else [])]]
    return Said(lines, kind="text/event-stream", cut=cut)


@contextmanager
def scripted(script: Script) -> Iterator[Scripted]:
    """Answer with what the script makes of path and body, until the block ends."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.answer({})

        def do_POST(self) -> None:
            self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def answer(self, body: Body) -> None:
            with lock:
                found.asked.append((self.path, body, dict(self.headers)))
                said = script(self.path, body)
            self.send_response(said.status)
            for name, value in {"Content-Type": said.kind, **said.headers}.items():
                self.send_header(name, value)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for part in said.parts:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                if not said.cut:
                    self.wfile.write(b"0\r\n\r\n")
            except ConnectionError:
                found.gone += 1
            self.close_connection = said.cut

        def log_message(self, *_: object) -> None:
            pass

    server = LoopbackServer(Handler)
    found = Scripted(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
