"""Clients that stop in the middle of a request are left, those that wait for an answer are not."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
from riverrun.server import protocol
from server_rig import GREEDY, Server, serving

SOON, LONG = 0.2, 3600.0
BODY = json.dumps(GREEDY).encode()
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(BODY)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(n_ctx=512, parallel=1) as made:
        yield made


def said(server: Server, *pieces: bytes) -> bytes:
    """What the server sends until it closes the connection."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=120) as client:
        for piece in pieces:
            client.sendall(piece)
        found = b""
        while more := client.recv(65536):
            found += more
    return found


@pytest.mark.parametrize(
    ("sent", "want"),
    [
        (b"", b""),
        (HEAD[:20], b"HTTP/1.1 400 Bad Request"),
        (HEAD[:-2], b"HTTP/1.1 400 Bad Request"),
        (HEAD + BODY[:9], b""),
    ],
    ids=["silent", "line", "headers", "body"],
)
def test_who_says_no_more_is_left(
    monkeypatch: pytest.MonkeyPatch, server: Server, sent: bytes, want: bytes
) -> None:
    monkeypatch.setattr(protocol, "PATIENCE", SOON)
    assert said(server, sent).startswith(want)
    monkeypatch.setattr(protocol, "PATIENCE", LONG)
    assert server.client.post("/v1/completions", json=GREEDY).status_code == 200


def test_who_waits_for_an_answer_is_not(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    """Nor who has come back to say more, on the same connection."""
    last = HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    # Long enough for the request itself to come, far too short for 400 tokens.
    long = json.dumps({**GREEDY, "max_tokens": 400, "ignore_eos": True}).encode()
    head = HEAD.replace(b"%d" % len(BODY), b"%d" % len(long))
    monkeypatch.setattr(protocol, "PATIENCE", SOON)
    found = said(server, head + long, last + BODY)
    assert found.count(b"HTTP/1.1 200 OK") == 2
