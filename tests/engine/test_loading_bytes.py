"""How much of a file loading touches: header and table when it is opened, then each weight once,
read through the mapping and written once in the layout of its kernel, or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import riverrun as rr
from demo import DEMO
from resident import NEEDS_SMAPS, resident
from riverrun.backends import cpu
from riverrun.backends.native import PLAIN
from riverrun.graph import HostTensor
from riverrun.models.gguf import open_gguf
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
def test_weights_that_are_read_as_they_are_stay_in_the_file(load: str) -> None:
    model = rr.load(DEMO, "cpu", 1, load=load)
    for name, tensor in model.source.weights.items():
        held = model.weights.buffer(name, PLAIN)
        assert held.ctypes.data == tensor.raw.ctypes.data and held.nbytes == tensor.spec.nbytes
    places = sorted((t.raw.ctypes.data, t.raw.nbytes) for t in model.source.weights.values())
    span = places[-1][0] + places[-1][1] - places[0][0]
    assert span <= DEMO.stat().st_size, "all are views of one file"
