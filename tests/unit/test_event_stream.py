"""Server-sent events, cut anywhere."""

from __future__ import annotations

import pytest
from riverrun.bench.event_stream import EventStream

CASES = {
    "lines": (b"data: a\n\ndata: b\n\n", ["a", "b"]),
    "returns": (b"data: a\r\rdata: b\r\r", ["a", "b"]),
    "both": (b"data: a\r\n\r\ndata: b\r\n\r\n", ["a", "b"]),
    "mixed": (b"data: a\r\n\ndata: b\n\r\ndata: c\r\r\n", ["a", "b", "c"]),
    "several lines": (b"data: a\ndata:b\ndata:  c\n\n", ["a\nb\n c"]),
    "no space": (b"data:a\n\ndata\n\n", ["a", ""]),
    "others": (b": kept alive\n\nevent: x\nid: 3\nretry: 1\ndatum: n\ndata: a\n\n", ["a"]),
    "a mark": (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
    "characters": ('data: {"é": "漢\U0001f642"}\n\n'.encode(), ['{"é": "漢\U0001f642"}']),
    "unended": (b"data: a\n\ndata: b\n", ["a"]),
    "empty": (b"\n\n\r\r\n", []),
}


def read(pieces: list[bytes]) -> list[str]:
    stream = EventStream()
    return [data for piece in pieces for data in stream.feed(piece)]


@pytest.mark.parametrize("name", CASES)
def test_streams_cut_in_two_everywhere(name: str) -> None:
    text, wanted = CASES[name]
    for at in range(len(text) + 1):
        assert read([text[:at], text[at:]]) == wanted, at


@pytest.mark.parametrize("name", CASES)
def test_streams_in_pieces_of_every_size(name: str) -> None:
    text, wanted = CASES[name]
    for size in range(1, len(text) + 1):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert read(pieces) == read([b"", *pieces, b""]) == wanted, size


def test_an_event_comes_with_the_piece_that_ends_it() -> None:
    stream = EventStream()
    assert stream.feed(b"data: a\r\n\r") == ["a"]
    assert stream.feed(b"\ndata: b\n") == []
    assert stream.feed(b"\n") == ["b"]


def test_bytes_that_are_no_text_spoil_one_event() -> None:
    assert read([b"data: \xff\n\ndata: b\n\n"]) == ["�", "b"]
