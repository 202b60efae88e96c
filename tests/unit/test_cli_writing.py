"""Ctrl-C while `quantize`, `synth` or `convert` writes: no half file, nothing beside it, 130."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli import LIMIT, default_signals, run_cli
from demo import DEMO
from small_checkpoint import checkpoint

COMMANDS = ("quantize", "synth", "convert")
# The process sends itself the signal after so many pieces.
SIGNALLED = """
import contextlib, os, signal, sys
from riverrun.tools import writing
from riverrun.tools.main import main
left = {pieces}
def progress(done, total):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGINT)
@contextlib.contextmanager
def bar(label):
    yield progress
writing.progress_bar = bar
sys.exit(main(sys.argv[1:]))
"""


def arguments(command: str, folder: Path) -> list[str]:
    """A command line that writes out.gguf in a folder."""
    out = folder / "out" / "out.gguf"
    out.parent.mkdir()
    if command == "quantize":
        return ["quantize", str(DEMO), str(out), "q8_0", "--allow-requantize"]
    if command == "synth":
        return ["synth", "tiny", "q8_0", str(out)]
    return ["convert", str(checkpoint(folder / "hf")), str(out), "--no-tokenizer"]


def counting(at: int) -> Callable[[str], object]:
    """A bar that Ctrl-C comes to when it is moved the at-th time, never for 0; in `moved` how
    often it was."""

    @contextmanager
    def bar(label: str) -> Iterator[Callable[[int, int], None]]:
        def progress(done: int, total: int) -> None:
            bar.moved += 1  # type: ignore[attr-defined]
            if bar.moved == at:  # type: ignore[attr-defined]
                raise KeyboardInterrupt

        yield progress

    bar.moved = 0  # type: ignore[attr-defined]
    return bar


@pytest.mark.parametrize("there", [False, True], ids=["new", "replaced"])
@pytest.mark.parametrize("command", COMMANDS)
def test_an_interrupt_at_any_tensor(
    command: str,
    there: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = arguments(command, tmp_path)
    out = tmp_path / "out" / "out.gguf"
    whole = counting(0)
    monkeypatch.setattr("riverrun.tools.writing.progress_bar", whole)
    assert run_cli(capsys, *line).code == 0
    out.unlink()
    if there:
        out.write_bytes(b"old")
        line.append("--force")
    moved = whole.moved  # type: ignore[attr-defined]
    assert moved > 5
    for at in (1, 2, moved // 2, moved - 1, moved):
        monkeypatch.setattr("riverrun.tools.writing.progress_bar", counting(at))
        outcome = run_cli(capsys, *line)
        assert (outcome.code, outcome.out) == (130, ""), outcome
        left = "is as it was" if there else "is not written"
        assert outcome.err == f"interrupted: {out} {left}\n"
        assert [p.name for p in out.parent.iterdir()] == (["out.gguf"] if there else [])
        assert not there or out.read_bytes() == b"old"


def test_an_interrupt_after_the_file_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = arguments("quantize", tmp_path)
    replace = os.replace

    def late(source: Path, target: Path) -> None:
        replace(source, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", late)
    outcome = run_cli(capsys, *line)
    out = tmp_path / "out" / "out.gguf"
    assert (outcome.code, outcome.err) == (130, f"interrupted: {out} is written\n")
    assert [p.name for p in out.parent.iterdir()] == ["out.gguf"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_signal(command: str, tmp_path: Path) -> None:
    line = arguments(command, tmp_path)
    with default_signals():
        done = subprocess.run(
            [sys.executable, "-c", SIGNALLED.format(pieces=3), *line],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
    out = tmp_path / "out" / "out.gguf"
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == f"interrupted: {out} is not written\n"
    assert list(out.parent.iterdir()) == []
