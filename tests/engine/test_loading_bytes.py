"""How much of a file loading touches: header and table when it is opened, then each weight once,
read through the mapping and written once in the layout of its kernel, or not at all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import riverrun as rr
from demo import DEMO
from resident import NEEDS_SMAPS, own, resident
from riverrun import _cpu
from riverrun.backends import cpu, native
from riverrun.backends.huge_pages import HUGE, huge_pages
from riverrun.backends.native import PLAIN
from riverrun.graph import HostTensor
from riverrun.models.gguf import open_gguf
from riverrun.models.gguf.pages import give_back
from riverrun.models.gguf.reader import open_bytes

IO = Path("/proc/self/io")
# What a fault may map around the byte that was asked for, and a bit for the pages at both ends.
AROUND = 1 << 17


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The demo in a file that nothing else has mapped."""
    path = tmp_path / "model.gguf"
    shutil.copyfile(DEMO, path)
    return path


def read_bytes() -> int:
    """Bytes that this process has asked the system to read."""
    (line,) = [line for line in IO.read_text().splitlines() if line.startswith("rchar:")]
    return int(line.split()[1])


@NEEDS_SMAPS
def test_opening_touches_no_weights(copy: Path) -> None:
    file = open_gguf(copy)
    start = min(row.start for row in file.infos.values())
    weights = copy.stat().st_size - start
    assert 0 < resident(copy) <= start + AROUND < weights / 4
    total = sum(int(tensor.data.sum()) for tensor in file.tensors.values())
    assert total > 0 and resident(copy) > weights - AROUND, "the count sees what is touched"


@pytest.mark.skipif(not IO.exists(), reason="no /proc/self/io, which counts what is read")
def test_a_copy_reads_the_file_once(copy: Path) -> None:
    size, before = copy.stat().st_size, read_bytes()
    held, _ = open_bytes(copy, "read")
    assert size <= read_bytes() - before <= size + (1 << 16)
    assert bytes(held) == copy.read_bytes()


def test_each_weight_is_rearranged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int]] = []
    plain = cpu.packed

    def spy(module: object, tensor: HostTensor, layout: int) -> np.ndarray:
        made.append((tensor.raw.ctypes.data, tensor.spec.nbytes))
        return plain(module, tensor, layout)

    monkeypatch.setattr(cpu, "packed", spy)
    told: list[tuple[int, int]] = []
    model = rr.load(DEMO, "cpu", 1, progress=lambda done, total: told.append((done, total)))
    assert len(set(made)) == len(made) > 0
    total = sum(tensor.spec.nbytes for tensor in model.weights.tensors.values())
    moved = sum(nbytes for _, nbytes in made)
    assert total / 2 < moved <= total
    assert told[-2:] == [(moved, total), (total, total)]
    after = len(made)
    for prompt in ("def f(", "def f(x): return x\n" * 40):
        list(model.generate(prompt, max_tokens=2, temperature=0))
    model.generate_batch(["import", "a", "b"], max_tokens=2, temperature=0)
    assert len(made) == after, "prompts and batches read the layouts that are there"


@pytest.mark.parametrize("load", ["map", "read"])
def test_large_weights_that_are_read_as_they_are_stay_in_the_file(
    load: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "SMALL", 4096)
    model = rr.load(DEMO, "cpu", 1, load=load)
    for name, tensor in model.source.weights.items():
        held = model.weights.buffer(name, PLAIN)
        there = load == "read" or tensor.spec.nbytes > 4096
        assert (held.ctypes.data == tensor.raw.ctypes.data) == there
        assert held.tobytes() == tensor.raw.tobytes()
    places = sorted((t.raw.ctypes.data, t.raw.nbytes) for t in model.source.weights.values())
    span = places[-1][0] + places[-1][1] - places[0][0]
    assert span <= DEMO.stat().st_size, "all are views of one file"


def watch(monkeypatch: pytest.MonkeyPatch, path: Path) -> list[int]:
    """What is in memory of a file, in bytes, whenever some of a weight was packed."""
    seen: list[int] = []

    class Watched:
        packed_bytes = staticmethod(_cpu.packed_bytes)

        @staticmethod
        def pack(*job: object) -> None:
            _cpu.pack(*job)
            seen.append(resident(path))

    plain = cpu.packed
    monkeypatch.setattr(cpu, "packed", lambda module, *rest: plain(Watched, *rest))
    return seen


@NEEDS_SMAPS
def test_what_was_packed_leaves_memory(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never more of the file is there than its header, a piece, and what the system maps around
    that; and afterwards nothing of the weights, tied embedding or not."""
    piece = 1 << 19
    monkeypatch.setattr(native, "_PIECE", piece)
    seen = watch(monkeypatch, copy)
    model = rr.load(copy, "cpu", 1)
    start = min(row.start for row in model.source.file.infos.values())
    around = 2 * HUGE
    assert len(seen) > copy.stat().st_size / piece
    assert 0 < max(seen) <= start + around + 2 * piece < copy.stat().st_size / 2
    model.source.file.give_back()  # the header
    list(model.generate("def f(x): return x\n" * 20, max_tokens=4, temperature=0))
    assert model.source.fingerprint and resident(copy) <= AROUND


HELD = """
import sys
from resident import own
from riverrun.backends import cpu, native
from riverrun.models import load_file
source = load_file(sys.argv[1])
weights = cpu.CpuBackend(1).load_weights(source.weights)
layouts = {n: cpu.ROWS16 if t.spec.rank == 2 else native.PLAIN for n, t in source.weights.items()}
before = own()
made = sum(weights.buffer(*key).nbytes for key in layouts.items())
print(source.nbytes, made, own() - before)
"""


@NEEDS_SMAPS
def test_weights_are_held_once(copy: Path) -> None:
    """In memory of the process: packed, as large as in the file, in pages that are filled. In a
    process of its own, which has no free memory of earlier tests."""
    done = subprocess.run(
        [sys.executable, "-c", HELD, str(copy)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    nbytes, made, held = map(int, done.stdout.split())
    assert made == pytest.approx(nbytes, rel=0.02)
    assert made / 2 < held <= made + (1 << 20)


@pytest.mark.parametrize("load", ["map", "read"])
def test_weights_are_the_file_s_before_and_after(load: str, copy: Path) -> None:
    """Two models, their drafters, and what reads a tensor after it was packed, have one file."""
    raw = copy.read_bytes()
    one, two = (rr.load(copy, "cpu", 1, load=load) for _ in range(2))
    texts = [
        "".join(model.generate("def f(", max_tokens=12, temperature=0, speculative=kind))
        for model in (one, two, one)
        for kind in (None, "mtp")
    ]
    assert len(set(texts)) == 1
    for name, tensor in one.source.weights.items():
        row = one.source.file.infos[name]
        assert tensor.raw.tobytes() == raw[row.start : row.start + row.nbytes]


@NEEDS_SMAPS
def test_a_part_of_a_file_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "large"
    values = np.arange(6 * HUGE // 8, dtype=np.int64)
    values.tofile(path)
    mapped, _ = open_bytes(path)
    raw = np.frombuffer(mapped, np.uint8)
    assert (raw.view(np.int64) == values).all() and resident(path) == raw.nbytes
    give_back(mapped, raw[HUGE + 5 : HUGE + 6])
    assert resident(path) == raw.nbytes - HUGE
    give_back(mapped, raw[3 * HUGE - 1 : 3 * HUGE + 1])
    assert resident(path) == raw.nbytes - 3 * HUGE
    give_back(mapped, raw[-1:])
    assert resident(path) == raw.nbytes - 4 * HUGE
    assert (raw.view(np.int64) == values).all(), "and is read again"


@NEEDS_SMAPS
@pytest.mark.parametrize("size", [1, HUGE - 1, HUGE, 5 * HUGE + 4096 + 7])
def test_huge_pages_hold_what_they_are_asked_for_and_no_more(size: int) -> None:
    before = own()
    raw = huge_pages(size)
    assert raw.nbytes == size and raw.ctypes.data % 64 == 0 and not raw[:: 1 << 16].any()
    raw[...] = 255
    assert own() - before <= size + (1 << 17)
    assert size < HUGE or raw.ctypes.data % HUGE == 0
