"""Damaged, truncated and malicious files: a clear GgufError, at once, with little memory."""

from __future__ import annotations

import os
import re
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_bytes import Image, array, info, scalar, small, string
from paths import DEMO
from riverrun.graph.errors import GgufError
from riverrun.graph.unread_types import NAMES, REFUSED
from riverrun.models.gguf import open_gguf

HUGE = 1 << 63


def refuse(path: Path, *parts: str) -> None:
    """Opening must fail with all parts and the file's name in one short line."""
    with pytest.raises(GgufError) as caught:
        open_gguf(path)
    message = str(caught.value)
    for part in (path.name, *parts):
        assert part in message, message
    assert "\n" not in message and len(message) < 900


def test_missing_file(tmp_path: Path) -> None:
    refuse(tmp_path / "no.gguf", "no such file")


def test_folder(tmp_path: Path) -> None:
    refuse(tmp_path, "is a folder")


def test_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "e.gguf"
    path.write_bytes(b"")
    refuse(path, "header: the file is empty")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no FIFOs")
def test_fifo_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f.gguf")
    refuse(tmp_path / "f.gguf", "not a regular file")


def test_path_with_nul() -> None:
    with pytest.raises(GgufError, match="cannot be opened"):
        open_gguf("a\0b")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root reads every file")
def test_unreadable_file(tmp_path: Path) -> None:
    path = small().write(tmp_path / "p.gguf")
    path.chmod(0)
    refuse(path, "cannot be opened", "ermission")


@pytest.mark.parametrize(
    ("raw", "part"),
    [
        (b"hello, this is text\n", "not a GGUF file"),
        (b"G", "magic must be"),
        (b"lmgg\1\0\0\0", "before GGUF"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"GGUF", "version needs 4 bytes"),
        (b"GGUF\3\0\0\0\1", "number of tensors needs 8 bytes"),
    ],
)
def test_not_gguf(tmp_path: Path, raw: bytes, part: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(raw)
    refuse(path, part)


@pytest.mark.parametrize("version", [0, 1, 4, 0xFFFFFFFF])
def test_version(tmp_path: Path, version: int) -> None:
    refuse(Image(version=version).write(tmp_path / "v.gguf"), "version", f"got {version}")


def test_byte_swapped_header(tmp_path: Path) -> None:
    path = tmp_path / "be.gguf"
    path.write_bytes(b"GGUF" + struct.pack(">Iqq", 3, 1, 1) + bytes(64))
    refuse(path, "byte order", "0x03000000")
    path.write_bytes(b"FUGG" + struct.pack(">Iqq", 3, 1, 1))
    refuse(path, "byte order")


def test_a_file_written_for_big_endian_hosts(tmp_path: Path) -> None:
    path = tmp_path / "be.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_uint32("llama.block_count", 1)
    writer.add_tensor("t", np.arange(8, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    refuse(path, "byte order (big-endian)", "convert it to little-endian")


@pytest.mark.parametrize("count", [-1, -HUGE, 1, 2, 1 << 40, HUGE - 1])
@pytest.mark.parametrize("what", ["n_tensors", "n_kv"])
def test_counts(tmp_path: Path, what: str, count: int) -> None:
    image = Image()
    setattr(image, what, count)
    part = "need at least" if count > 0 else "must be >= 0"
    refuse(image.write(tmp_path / "n.gguf"), part, str(count))


def _text(length: int) -> bytes:
    return string("k") + struct.pack("<iQ", 8, length) + b"abc"


KEYS: dict[str, tuple[Any, ...]] = {
    "empty key": ([scalar("", "u8", 1), scalar("next", "u8", 1)], "key is empty"),
    "duplicate": ([scalar("dup", "u8", 1), scalar("dup", "u32", 1)], "'dup': occurs twice"),
    "key not utf-8": ([scalar(b"\xff\xfe", "u8", 1)], "key must be UTF-8"),
    "key length": ([struct.pack("<Q", HUGE) + bytes(32)], f"got {HUGE}"),
    "key beyond file": ([struct.pack("<Q", 60000) + bytes(32)], "key needs 60000 bytes"),
    "value type 13": ([string("k") + struct.pack("<iQ", 13, 0)], "value type must be", "got 13"),
    "value type -1": ([string("k") + struct.pack("<iQ", -1, 0)], "value type must be", "got -1"),
    "string beyond file": ([_text(4)], "'k': text needs 4 bytes"),
    "string over 2**30": ([_text((1 << 30) + 1)], "at most 1073741824"),
    "string of 2**63": ([_text(HUGE)], f"got {HUGE}"),
    "string of 2**64-1": ([_text(2 * HUGE - 1)], f"got {2 * HUGE - 1}"),
    "array beyond file": ([array("k", "u32", [1, 2], 3)], "array of 3 u32 needs 12 bytes"),
    "array over 2**30": ([array("k", "u8", [1], (1 << 30) + 1)], "got a count of 1073741825"),
    "array of 2**62": ([array("k", "u32", [1], 1 << 62)], "got a count of"),
    "array of 2**64-1": ([array("k", "f64", [1], 2 * HUGE - 1)], "got a count of"),
    "strings beyond file": ([array("k", "str", ["a"], 2)], "'k': array of 2 str needs 16 bytes"),
    "last string cut": ([array("k", "str", ["a" * 16, "bc"], 2)[:-1]], "array of 2 strings"),
    "no last string": ([array("k", "str", ["a" * 16], 2)], "array of 2 strings"),
    "inner string huge": (
        [array("k", "str", ["a"], 3) + struct.pack("<Q", HUGE) + bytes(8)],
        "array of 3 strings",
    ),
    "item type 99": ([string("k") + struct.pack("<iiQ", 9, 99, 0)], "item type must be", "got 99"),
    "nested arrays": (
        [string("k") + struct.pack("<i", 9) + struct.pack("<iQ", 9, 1) * 1000],
        "arrays of arrays",
    ),
    "alignment 0": ([scalar("general.alignment", "u32", 0)], "power of two, got 0"),
    "alignment 3": ([scalar("general.alignment", "u32", 3)], "power of two, got 3"),
    "alignment type": ([scalar("general.alignment", "u64", 32)], "type u32, got u64"),
}


@pytest.mark.parametrize("case", KEYS)
def test_metadata(tmp_path: Path, case: str) -> None:
    keys, *parts = KEYS[case]
    refuse(Image(keys).write(tmp_path / "k.gguf"), *parts)


def test_long_names_are_cut_in_messages(tmp_path: Path) -> None:
    key = scalar("k\n" * 30000, "u8", 1)
    refuse(Image([key, key]).write(tmp_path / "l.gguf"), "occurs twice", "\\n")


def _one(*args: object, **kwargs: object) -> list[bytes]:
    return [info(*args, **kwargs)]  # type: ignore[arg-type]


BIG = (1 << 42) + 1
TABLES: dict[str, tuple[Any, ...]] = {
    "name of 64": (_one("n" * 64, (1,), 0, 0), "at most 63 bytes, got 64"),
    "name not utf-8": (_one(b"\xff", (1,), 0, 0), "name must be UTF-8"),
    "duplicate": (
        [info("t", (8,), 0, 0), info("t", (8,), 0, 32)],
        "'t': occurs twice",
    ),
    "5 dims": (_one("t", (1,) * 5, 0, 0), "at most 4 dimensions, got 5"),
    "2**32-1 dims": (_one("t", (1,), 0, 0, n_dims=0xFFFFFFFF), "got 4294967295"),
    "negative": (_one("t", (4, -1), 0, 0), "must be >= 0"),
    "product 2**64": (_one("t", (BIG, BIG), 0, 0), "2**63"),
    "product wraps small": (_one("t", (1 << 32, 1 << 32), 0, 0), "2**63"),
    "product 2**63": (_one("t", (1 << 61, 4), 24, 0), "2**63"),
    "bytes 2**63": (_one("t", (1 << 61,), 0, 0), "2**63"),
    "zero hides a product": (_one("t", (1 << 62, 1 << 62, 0), 0, 0), "2**63"),
    "bug case": (_one("t", (BIG * 1024, 1), 0, 0), "within the file"),
    "block of 32": (_one("t", (33, 2), 8, 0), "whole blocks of 32", "q8_0", "33"),
    "block of 256": (_one("t", (288,), 12, 0), "whole blocks of 256", "q4_k", "288"),
    "block of rank 0": (_one("t", (), 8, 0), "whole blocks of 32"),
    "first offset": (_one("t", (1,), 0, 32), "offset must be 0", "got 32"),
    "offset near 2**64": (_one("t", (1,), 0, 2 * HUGE - 32), "offset must be 0"),
    "gap": ([info("t", (8,), 0, 0), info("u", (8,), 0, 64)], "'u'", "offset must be 32"),
    "overlap": (
        [info("t", (9,), 0, 0), info("u", (8,), 0, 32)],
        "tensor 'u': offset must be 64, the padded end of tensor 't', got 32",
    ),
    "same data": (
        [info("t", (8,), 0, 0), info("u", (8,), 0, 0)],
        "tensor 'u': offset must be 32, the padded end of tensor 't', got 0",
    ),
    "same data, one between": (
        [info("t", (8,), 0, 0), info("u", (8,), 0, 32), info("v", (8,), 0, 0)],
        "tensor 'v': offset must be 64, the padded end of tensor 'u', got 0",
    ),
    "one within another": (
        [info("t", (64,), 0, 0), info("u", (8,), 0, 64)],
        "tensor 'u': offset must be 256, the padded end of tensor 't', got 64",
    ),
    "order": ([info("t", (8,), 0, 32), info("u", (8,), 0, 0)], "'t'", "offset must be 0"),
    "beyond file": (_one("t", (1 << 20,), 0, 0), "'t'", "within the file", "4194"),
}


@pytest.mark.parametrize("case", TABLES)
def test_tensor_table(tmp_path: Path, case: str) -> None:
    infos, *parts = TABLES[case]
    refuse(Image([], infos, bytes(512)).write(tmp_path / "t.gguf"), *parts)


def test_huge_alignment_points_past_the_file(tmp_path: Path) -> None:
    keys = [scalar("general.alignment", "u32", 1 << 30)]
    path = Image(keys, [info("t", (8,), 0, 0)], bytes(64)).write(tmp_path / "a.gguf")
    refuse(path, "'t'", "within the file", str((1 << 30) + 32))


def test_zero_sized_tensor_must_start_within_the_file(tmp_path: Path) -> None:
    image = Image([], [info("t", (0,), 0, 0)])
    open_gguf(image.write(tmp_path / "z.gguf"))
    path = tmp_path / "z2.gguf"
    path.write_bytes(image.head())
    refuse(path, "'t'", "within the file")


@pytest.mark.parametrize("type_id", [4, 5, 31, 32, 33, 36, 37, 38, 43, 250, -1, -(1 << 31)])
def test_unknown_type_leaves_metadata_readable(tmp_path: Path, type_id: int) -> None:
    image = small()
    image.infos[1] = info("w.odd", (32, 1), type_id, 32)
    f = open_gguf(image.write(tmp_path / "u.gguf"))
    assert f.get_str("general.architecture") == "llama"
    rows = [(row.type_name, row.shape, row.nbytes) for row in f.infos.values()]
    odd = (NAMES.get(type_id, f"type {type_id}"), (1, 32), 64)
    assert rows == [("f32", (2, 3), 24), odd, ("f16", (4,), 8)]
    for use in (lambda: f.tensors, f.check_tensors):
        with pytest.raises(GgufError) as caught:
            use()
        told = str(caught.value)
        assert re.search(rf"u\.gguf: tensor 'w\.odd' has type id {type_id},", told)
        if type_id in NAMES:
            assert told.endswith(f", {NAMES[type_id]}: {REFUSED[NAMES[type_id]]}")
        else:
            assert "expected a known one (0 f32, 1 f16" in told


@pytest.mark.parametrize("offset", [31, 40, 16, 0])
def test_offset_behind_a_tensor_of_unknown_type(tmp_path: Path, offset: int) -> None:
    infos = [info("a", (8,), 0, 0), info("odd", (3,), 99, 32), info("b", (1,), 0, offset)]
    refuse(Image([], infos, bytes(128)).write(tmp_path / "o.gguf"), "'odd'", f"got {offset}")


def test_cut_data_is_counted_where_asked(tmp_path: Path) -> None:
    """At every length from the end of the table on; of header, keys and table nothing is missing
    in a file that opens."""
    image = small()
    raw, start = image.build(), len(image.head())
    path = tmp_path / "cut.gguf"
    for length in range(len(raw) + 1):
        path.write_bytes(raw[:length])
        if length < start:
            with pytest.raises(GgufError):
                open_gguf(path, whole=False)
            continue
        f = open_gguf(path, whole=False)
        assert f.missing_bytes == len(raw) - length and len(f.infos) == 3
        if f.missing_bytes:
            with pytest.raises(GgufError, match=f"lacks its last {len(raw) - length} bytes"):
                _ = f.tensors
    assert len(f.tensors) == 3


def test_a_cut_file_with_an_unknown_type(tmp_path: Path) -> None:
    infos = [info("odd", (3,), 99, 0), info("b", (8,), 0, 32)]
    f = open_gguf(Image([], infos, bytes(40)).write(tmp_path / "o.gguf"), whole=False)
    assert (f.missing_bytes, [row.nbytes for row in f.infos.values()]) == (24, [32, 32])
    with pytest.raises(GgufError, match="lacks its last 24 bytes"):
        _ = f.tensors


def test_truncation_anywhere_is_an_error(tmp_path: Path) -> None:
    """Every shorter length of a sound file: header, metadata, table, padding, data, last byte."""
    raw = small().build()
    path = tmp_path / "cut.gguf"
    for length in range(len(raw)):
        path.write_bytes(raw[:length])
        refuse(path)
    path.write_bytes(raw)
    open_gguf(path)


def test_truncated_data_names_tensor_end_and_size(tmp_path: Path) -> None:
    raw = small().build()
    path = tmp_path / "last.gguf"
    path.write_bytes(raw[:-1])
    refuse(path, "'w.f16'", f"ends at byte {len(raw)}", f"{len(raw) - 1} bytes")


def test_truncated_demo(tmp_path: Path) -> None:
    raw = DEMO.read_bytes()
    path = tmp_path / "demo.gguf"
    for length in (3, 20, 1000, 300_000, len(raw) // 2, len(raw) - 1):
        path.write_bytes(raw[:length])
        refuse(path)


TINY = {
    "keys": Image(n_kv=HUGE - 1),
    "tensors": Image(n_tensors=HUGE - 1),
    "text": Image([_text(HUGE)]),
    "short text": Image([_text(1 << 30)]),
    "array": Image([array("k", "f64", [], 1 << 30)]),
    "strings": Image([array("k", "str", [], 1 << 30)]),
    "tensor": Image([], [info("t", (1 << 60,), 24, 0)]),
    "alignment": Image([scalar("general.alignment", "u32", 1 << 31)], [info("t", (1,), 0, 0)]),
}


@pytest.mark.parametrize("case", TINY)
def test_tiny_file_costs_little(tmp_path: Path, case: str) -> None:
    path = TINY[case].write(tmp_path / "tiny.gguf")
    tracemalloc.start()
    start = time.monotonic()
    try:
        refuse(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.monotonic() - start < 1
    assert peak < 2 << 20
