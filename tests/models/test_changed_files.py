"""Model files that are written to, cut, replaced or deleted while they are loaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import riverrun as rr
from paths import DEMO
from riverrun.graph.errors import GgufError, ModelError, RequestError
from riverrun.models import load_file
from riverrun.models.gguf import reader


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return Path(shutil.copy(DEMO, tmp_path / "model.gguf"))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 4096)


def overwrite(path: Path) -> None:
    raw = path.read_bytes()
    with open(path, "r+b") as file:
        file.write(raw)
    os.utime(path, ns=(1, 1))


def replace(path: Path) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(b"another file")
    other.replace(path)


@pytest.mark.parametrize("change", [cut, overwrite])
def test_a_mapped_file_that_was_written_to(change: Callable[[Path], None], path: Path) -> None:
    file = load_file(path)
    file.check_unchanged()
    change(path)
    with pytest.raises(ModelError, match=r"was written to after .*load=\"read\"") as caught:
        file.check_unchanged()
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("change", [replace, Path.unlink])
def test_a_mapping_outlives_the_name_of_its_file(
    change: Callable[[Path], None], path: Path
) -> None:
    file, copy = load_file(path), load_file(DEMO)
    change(path)
    file.check_unchanged()
    for name, tensor in file.weights.items():
        np.testing.assert_array_equal(tensor.raw, copy.weights[name].raw)


@pytest.mark.parametrize("change", [cut, overwrite, replace, Path.unlink])
def test_a_copy_in_memory_is_independent(change: Callable[[Path], None], path: Path) -> None:
    file, mapped = load_file(path, load="read"), load_file(DEMO)
    change(path)
    file.check_unchanged()
    for name, tensor in file.weights.items():
        assert not tensor.raw.flags.writeable
        np.testing.assert_array_equal(tensor.raw, mapped.weights[name].raw)


def test_a_model_that_was_read_generates_the_same() -> None:
    def tokens(load: str) -> list[int]:
        return rr.load(DEMO, "cpu", load=load).generate("def ", 4, temperature=0).result.tokens

    assert tokens("read") == tokens("map")


def test_a_file_that_shrinks_while_it_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = os.fstat

    def longer(fd: int) -> os.stat_result:
        found = list(stat(fd))
        found[6] += 1
        return os.stat_result(found)

    monkeypatch.setattr(reader.os, "fstat", longer)
    with pytest.raises(GgufError, match="became shorter"):
        load_file(path, load="read")


def test_other_ways_of_loading_are_refused() -> None:
    with pytest.raises(RequestError, match="load: expected one of map, read, got 'copy'"):
        rr.load(DEMO, load="copy")
