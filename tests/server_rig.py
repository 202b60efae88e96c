"""A server of the demo model on a port of its own, in a thread of this process."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import riverrun as rr
import uvicorn
from demo import demo
from paths import DEMO
from riverrun.engine.engine import Engine
from riverrun.server.app import make_app
from riverrun.server.options import ServerOptions
from riverrun.server.protocol import BoundedRequests
from riverrun.server.served import Served
from riverrun.server.service import Service

T = TypeVar("T")
PROMPT = "def quicksort(arr):"
GREEDY = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0}


def shared_demo() -> rr.Model:
    """The demo model of this process, which outlives the server that closes it."""
    model = copy.copy(demo())
    model.close = lambda: None  # type: ignore[method-assign]
    return model


class Server:
    """A server that runs. url: where; client: of httpx, with that as its base; service: what its
    endpoints share, used on `loop`."""

    def __init__(self, service: Service) -> None:
        self.service = service
        config = uvicorn.Config(
            make_app(service), port=0, log_config=None, lifespan="on", http=BoundedRequests
        )
        self._server = uvicorn.Server(config)
        self.loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._started.wait(120), "the server did not start"
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(base_url=self.url, timeout=120)

    def _run(self) -> None:
        async def run() -> None:
            self.loop = asyncio.get_running_loop()
            serving = asyncio.create_task(self._server.serve())
            while not self._server.started:
                await asyncio.sleep(0.005)
                if serving.done():
                    break
            self._started.set()
            await serving

        asyncio.run(run())

    def begin_stop(self) -> None:
        """Begin to shut it down."""
        self._server.should_exit = True

    def stop(self) -> None:
        """Shut it down and wait for its end."""
        self.client.close()
        self.begin_stop()
        self._thread.join(60)

    @property
    def served(self) -> Served:
        """Its main model."""
        return self.service.store.loaded[0]

    def post(self, path: str, status: int = 200, **body: Any) -> Any:
        """What comes of a body; asserts the status."""
        answer = self.client.post(path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def stream(self, path: str, **body: Any) -> list[Any]:
        """The events of a stream, "[DONE]" as text."""
        body.setdefault("stream", True)
        with self.client.stream("POST", path, json=body) as answer:
            assert answer.status_code == 200, answer.read()
            return events(answer.read().decode())

    def idle(self) -> bool:
        """Whether nothing runs or waits, in the engine either."""
        return self.served.busy == 0 and self.served.engine.idle


def awaited(what: Callable[[], T], seconds: float = 60) -> T:
    """What a function gives once that is something; fails after a watchdog's time."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "nothing came"
        time.sleep(0.002)
    return found


def send(server: Server, path: str, body: dict[str, Any]) -> socket.socket:
    """A raw request; the connection is the caller's to close."""
    host, port = server.url.removeprefix("http://").split(":")
    found = socket.create_connection((host, int(port)))
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(data)}\r\n\r\n"
    found.sendall(head.encode() + data)
    return found


def events(text: str) -> list[Any]:
    """The data of server-sent events."""
    found = []
    for block in text.split("\n\n"):
        data = [line[6:] for line in block.split("\n") if line.startswith("data: ")]
        if data:
            found.append(data[0] if data[0] == "[DONE]" else json.loads(data[0]))
    return found


@contextlib.contextmanager
def serving(
    n_ctx: int = 512,
    spec: str | None = None,
    engine: dict[str, Any] | None = None,
    kind: type[Engine] = Engine,
    **options: Any,
) -> Iterator[Server]:
    """A server of the demo model. engine: further arguments of its engine, which is of a kind."""
    chosen = ServerOptions(port=0, **{"parallel": 4, **options})

    def load(path: Path) -> Engine:
        model = shared_demo() if path == DEMO else rr.load(path)
        more = engine or {}
        return kind(model, n_seqs=chosen.parallel, n_ctx=n_ctx, spec=spec, **more)

    server = Server(Service(chosen, load, DEMO))
    try:
        yield server
    finally:
        server.stop()
