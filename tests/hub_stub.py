"""A Hugging Face Hub on this machine, with what its client needs to list and fetch files."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote, urlsplit

from scripted_server import LoopbackServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Stub:
    """repos: files by path. refuses: the status of all answers, with its code in X-Error-Code;
    damaged: bytes of a file's end that are sent as others; sums: of files in place of the right
    ones; seen: method, path and Range of all
    requests."""

    repos: dict[str, dict[str, bytes]]
    refuses: tuple[int, str] | None = None
    damaged: int = 0
    sums: dict[str, str] = field(default_factory=dict)
    seen: list[tuple[str, str, str | None]] = field(default_factory=list)
    url: str = ""

    def fetches(self) -> list[tuple[str, str | None]]:
        """Files fetched, each with its Range."""
        return [
            (path.rsplit("/", 1)[1], part)
            for how, path, part in self.seen
            if how == "GET" and "/resolve/" in path
        ]


@contextmanager
def serving(stub: Stub) -> Iterator[Stub]:
    """The stub, answering at `url` inside the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            _answer(self, stub)

        do_HEAD = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = LoopbackServer(Handler)
    server.daemon_threads = True
    stub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _answer(handler: BaseHTTPRequestHandler, stub: Stub) -> None:
    path = unquote(urlsplit(handler.path).path)
    stub.seen.append((handler.command, path, handler.headers.get("Range")))
    if stub.refuses:
        _send(handler, stub.refuses[0], b"{}", {"X-Error-Code": stub.refuses[1]})
    elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/[^/]+)?", path):
        _send_listing(handler, stub, found[1])
    elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
        _send_file(handler, stub, found[1], found[2])
    else:
        _send(handler, 404, b"{}", {})


def _send_listing(handler: BaseHTTPRequestHandler, stub: Stub, repo: str) -> None:
    files = stub.repos.get(repo)
    if files is None:
        return _send(handler, 404, b"{}", {"X-Error-Code": "RepoNotFound"})
    siblings = [
        {
            "rfilename": name,
            "size": len(raw),
            "blobId": hashlib.sha1(raw).hexdigest(),
            "lfs": {"sha256": stub.sums.get(name, _sum(raw)), "size": len(raw), "pointerSize": 130},
        }
        for name, raw in files.items()
    ]
    listing = {"id": repo, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False}
    return _send(handler, 200, json.dumps(listing).encode(), {"Content-Type": "application/json"})


def _send_file(handler: BaseHTTPRequestHandler, stub: Stub, repo: str, name: str) -> None:
    raw = stub.repos.get(repo, {}).get(name)
    if raw is None:
        return _send(handler, 404, b"", {"X-Error-Code": "EntryNotFound"})
    headers = {"ETag": f'"{_sum(raw)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
    headers |= {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": str(len(raw))}
    body = raw[: len(raw) - stub.damaged] + b"!" * stub.damaged
    part = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range") or "")
    if part is None:
        return _send(handler, 200, body, headers)
    start = int(part[1])
    headers["Content-Range"] = f"bytes {start}-{len(raw) - 1}/{len(raw)}"
    return _send(handler, 206, body[start:], headers)


def _send(
    handler: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str]
) -> None:
    handler.send_response(status)
    for name, value in {**headers, "Content-Length": str(len(body))}.items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)


def _sum(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
