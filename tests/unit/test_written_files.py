"""Files that commands write: nothing that they read is replaced, nor anything that is no file, and
what cannot be written whole leaves what was there."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import gguf
import numpy as np
import pytest
from cli import DEVICE, run_cli
from gguf_bytes import small
from paths import DEMO
from riverrun.errors import RequestError
from riverrun.tools.files import write_text


def imatrix(path: Path) -> Path:
    """An importance matrix that fits no tensor."""
    writer = gguf.GGUFWriter(path, "none")
    writer.add_string("general.type", "imatrix")
    for name in ("in_sum2", "counts"):
        writer.add_tensor(f"x.{name}", np.ones((1, 32 if name == "in_sum2" else 1), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def checkpoint(folder: Path) -> Path:
    """A folder with the files of a checkpoint, of which none is read here."""
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text("{}")
    return folder


def linked(target: Path, path: Path) -> Path:
    path.symlink_to(target)
    return path


def test_what_is_read_is_not_replaced(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """By any of its names, also with --force."""
    model = tmp_path / "model.gguf"
    model.write_bytes(DEMO.read_bytes())
    link = linked(model, tmp_path / "link.gguf")
    matrix = imatrix(tmp_path / "matrix.gguf")
    folder = checkpoint(tmp_path / "checkpoint")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    taken = ("--force", "--allow-requantize")
    for arguments in (
        ("quantize", model, link, "Q8_0", *taken),
        ("quantize", DEMO, matrix, "Q8_0", *taken, "--imatrix", matrix),
        ("synth", "tiny", "Q8_0", model, "--vocab", model, "--force"),
        ("synth", "tiny", "Q8_0", model, "--vocab", link, "--force"),
        ("convert", folder, folder / "config.json", "--force", "--no-tokenizer"),
        ("convert", folder, folder / "model.safetensors", "--force", "--no-tokenizer"),
        ("graph", model, "--device", DEVICE, "-o", model),
        ("test-ops", "--support", "--op", "neg", "--write", model),
    ):
        outcome = run_cli(capsys, *arguments)
        assert outcome.is_short_error(outcome.code or -1) and "another" in outcome.err, outcome
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no FIFOs")
def test_model_files_replace_files_only(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """No device, such as /dev/full, nor pipe."""
    os.mkfifo(tmp_path / "pipe")
    for arguments in (
        ("quantize", DEMO, tmp_path / "pipe", "Q8_0", "--allow-requantize"),
        ("synth", "tiny", "Q8_0", tmp_path / "pipe"),
        ("convert", tmp_path, tmp_path / "pipe"),
    ):
        outcome = run_cli(capsys, *arguments, "--force")
        assert outcome.is_short_error(1) and "not a regular file" in outcome.err
        assert (tmp_path / "pipe").is_fifo() and len(list(tmp_path.iterdir())) == 1


def test_texts_keep_their_place_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("before")
    path.chmod(0o600)
    write_text(linked(path, tmp_path / "link"), "é")
    assert path.read_text(encoding="utf-8") == "é" and path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "link").is_symlink() and len(list(tmp_path.iterdir())) == 2
    write_text(Path(os.devnull), "gone")
    assert not Path(os.devnull).is_file()


def test_a_text_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "text"
    path.write_text("before")
    whole = Path.write_text

    def full(self: Path, text: str, **options: str) -> int:
        whole(self, text[:1], **options)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(RequestError, match=r"text: cannot be written: No space left"):
        write_text(path, "after")
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


def test_a_text_replaces_no_model(tmp_path: Path) -> None:
    path = small().write(tmp_path / "m.gguf")
    raw = path.read_bytes()
    with pytest.raises(RequestError, match=r"m\.gguf: is a GGUF file.*name another"):
        write_text(path, "text")
    assert path.read_bytes() == raw


@pytest.mark.parametrize("name", ["qwen9", "whitespace", "Qwen2"])
def test_an_unknown_pretokenizer_is_refused_before_a_file_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    folder, out = checkpoint(tmp_path / "checkpoint"), tmp_path / "out.gguf"
    outcome = run_cli(capsys, "convert", folder, out, "--pre", name)
    assert outcome.is_short_error(2) and "--pre" in outcome.err and repr(name) in outcome.err
    assert not out.exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no FIFOs")
def test_a_place_for_counts_is_checked_before_any_text(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, words in (
        (tmp_path / "none" / "counts", "cannot be written in"),
        (tmp_path / "pipe", "not a regular file"),
        (tmp_path, "not a regular file"),
    ):
        options = ("--spec", "ngram-cache", "--lookup-cache-dynamic", path, "--device", DEVICE)
        outcome = run_cli(capsys, "run", DEMO, "-p", "x", "-n", 1, *options)
        assert outcome.code == 1 and outcome.out == "" and words in outcome.err, outcome
