"""Random damage to a sound file gives a ModelError or a file that can be read to the end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from gguf_bytes import small
from hypothesis import given, settings
from hypothesis import strategies as st
from riverrun.graph.errors import ModelError
from riverrun.models.gguf import GgufFile, open_gguf

SOUND = small().build()
EXTREMES = [b"\0" * 8, b"\xff" * 8, b"\xff" * 7 + b"\x7f", b"\0" * 7 + b"\x80", b"\1\0\0\0" * 2]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "f.gguf"


def read_all(f: GgufFile) -> None:
    """Touch every value and every byte, each of which may refuse with a ModelError only."""
    size = f.path.stat().st_size
    for key in f.metadata:
        allowed(partial(f.metadata.__getitem__, key))
        assert f.value_type(key)
    allowed(f.check_tensors)

    def tensors() -> None:
        for t in f.tensors.values():
            assert t.nbytes <= size and int(t.data.sum()) >= 0

    allowed(tensors)


def allowed(action: Callable[[], object]) -> None:
    try:
        action()
    except ModelError as error:
        assert "f.gguf" in str(error)


def attack(path: Path, raw: bytes) -> None:
    path.write_bytes(raw)
    allowed(lambda: read_all(open_gguf(path)))


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(
    edits=st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(1, 255)), max_size=4),
    cut=st.one_of(st.none(), st.integers(0, len(SOUND))),
)
def test_flipped_and_truncated(path: Path, edits: list[tuple[int, int]], cut: int | None) -> None:
    raw = bytearray(SOUND)
    for at, mask in edits:
        raw[at] ^= mask
    attack(path, bytes(raw[:cut]))


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(
    at=st.integers(0, len(SOUND) - 8), word=st.sampled_from(EXTREMES), width=st.sampled_from([4, 8])
)
def test_extreme_words(path: Path, at: int, word: bytes, width: int) -> None:
    attack(path, SOUND[:at] + word[:width] + SOUND[at + width :])


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(tail=st.binary(max_size=200))
def test_random_body_behind_a_sound_header(path: Path, tail: bytes) -> None:
    attack(path, SOUND[:24] + tail)
