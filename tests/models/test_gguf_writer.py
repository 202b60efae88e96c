"""Files as they are written: byte for byte those built by hand, whole or not there."""

from __future__ import annotations

import shutil
import struct
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_bytes import Image, info, small
from gguf_bytes import array as array_bytes
from gguf_bytes import scalar as scalar_bytes
from riverrun.graph.dtype import dtype
from riverrun.graph.errors import GgufError, RequestError
from riverrun.models.gguf import NewTensor, fields_of, new_fields, open_gguf, scalar, write_gguf

Usage = namedtuple("Usage", "total used free")
FOUR = NewTensor("a", (4,), dtype("f32"), lambda: [np.arange(4, dtype=np.float32)])


def test_a_copy_is_the_file(tmp_path: Path) -> None:
    """Every kind of value, and tensors that end between two places where data may start."""
    source = small().write(tmp_path / "a.gguf")
    with open_gguf(source) as file:
        tensors = [
            NewTensor(t.name, t.shape, t.dtype, lambda t=t: [t.data[:5], t.data[5:].tobytes()])
            for t in file.tensors.values()
        ]
        write_gguf(tmp_path / "b.gguf", fields_of(file.metadata), tensors)
    assert (tmp_path / "b.gguf").read_bytes() == small().build() + bytes(-8 % 32)


def test_values_of_python(tmp_path: Path) -> None:
    values: dict[str, Any] = {"text": "ü", "yes": True, "n": 2**32 - 1, "x": 0.1}
    values |= {"texts": ["a", ""], "flags": [True, False], "ids": [-1, 7], "scores": [0.5, -2.0]}
    keys = [
        scalar_bytes("text", "str", "ü"),
        scalar_bytes("yes", "bool", True),
        scalar_bytes("n", "u32", 2**32 - 1),
        scalar_bytes("x", "f32", 0.1),
        array_bytes("texts", "str", ["a", ""]),
        array_bytes("flags", "bool", [True, False]),
        array_bytes("ids", "i32", [-1, 7]),
        array_bytes("scores", "f32", [0.5, -2.0]),
        array_bytes("none", "str", []),
    ]
    write_gguf(tmp_path / "a.gguf", new_fields({**values, "none": []}), [])
    head = Image(keys).head()
    assert (tmp_path / "a.gguf").read_bytes() == head + bytes(-len(head) % 32)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (-1, "0 to 4294967295, got -1"),
        (2**32, "got 4294967296"),
        ([0, 2**31], "-2147483648 to 2147483647, got 2147483648"),
        (None, "got None"),
        ([1, "a"], "a list of one of them"),
        (["a", None], "a list of one of them"),
        ({"a": 1}, "got {'a': 1}"),
    ],
    ids=str,
)
def test_values_that_a_file_has_no_type_for(value: Any, words: str) -> None:
    with pytest.raises(GgufError) as caught:
        new_fields({"some.key": value})
    assert "'some.key'" in str(caught.value) and words in str(caught.value)


def test_data_starts_where_the_alignment_says(tmp_path: Path) -> None:
    second = NewTensor("b", (1,), dtype("f32"), lambda: [struct.pack("<f", 9)])
    write_gguf(tmp_path / "a.gguf", {"general.alignment": scalar("u32", 128)}, [FOUR, second])
    image = Image(
        [scalar_bytes("general.alignment", "u32", 128)],
        [info("a", (4,), 0, 0), info("b", (1,), 0, 128)],
        struct.pack("<4f", 0, 1, 2, 3) + bytes(112) + struct.pack("<f", 9) + bytes(124),
        alignment=128,
    )
    assert (tmp_path / "a.gguf").read_bytes() == image.build()


def refuse(path: Path) -> None:
    assert open_gguf(path).tensors
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("tensor", "how", "error"),
    [
        (FOUR, {"check": refuse}, KeyboardInterrupt),
        (NewTensor("a", (4,), dtype("f32"), lambda: [bytes(12)]), {}, GgufError),
        (NewTensor("a", (4,), dtype("f32"), lambda: [bytes(20)]), {}, GgufError),
        (NewTensor("a" * 64, (4,), dtype("f32"), lambda: [bytes(16)]), {}, GgufError),
        (NewTensor("a", (1,) * 5, dtype("f32"), lambda: [bytes(4)]), {}, GgufError),
    ],
    ids=["check", "short", "long", "name", "dimensions"],
)
def test_a_failure_leaves_what_was_there(
    tmp_path: Path, tensor: NewTensor, how: dict[str, Any], error: type[BaseException]
) -> None:
    out = tmp_path / "a.gguf"
    out.write_text("mine")
    with pytest.raises(error):
        write_gguf(out, {}, [FOUR, tensor] if not how else [tensor], force=True, **how)
    assert [p.name for p in tmp_path.iterdir()] == ["a.gguf"] and out.read_text() == "mine"


def test_a_disk_without_room_is_told_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10, 10, 0))
    with pytest.raises(RequestError, match=r"a\.gguf: needs \d+ bytes, 0 are free"):
        write_gguf(tmp_path / "a.gguf", {}, [FOUR])
    assert not list(tmp_path.iterdir())
