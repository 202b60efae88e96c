"""Running the `riverrun` command in tests: in this process, or as one of its own."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from riverrun.tools.main import main

DEVICE = "cpu"
LIMIT = 120.0


@dataclass(frozen=True)
class Outcome:
    """What a command left."""

    code: int
    out: str
    err: str

    def is_short_error(self, code: int) -> bool:
        """Nothing on standard output, a message of one to three lines, and this exit code."""
        lines = self.err.splitlines()
        short = 1 <= len(lines) <= 3 and all(len(line) < 700 for line in lines)
        return (self.code, self.out) == (code, "") and short and "Traceback" not in self.err


def run_cli(capsys: pytest.CaptureFixture[str], *arguments: object) -> Outcome:
    """Run a command line in this process."""
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return Outcome(code, captured.out, captured.err)


def feed(monkeypatch: pytest.MonkeyPatch, raw: bytes, terminal: bool = False) -> None:
    """Standard input holds these bytes, as from a pipe or as typed."""
    stdin = io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8")
    stdin.isatty = lambda: terminal  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdin", stdin)


@contextmanager
def default_signals() -> Iterator[None]:
    """Children that start in the block take signals as they do in a terminal.

    What a process ignores its children ignore, too, and a shell starts commands behind `&` or under
    nohup so. What it handles is back at the default in what it executes."""
    numbers = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM)
    ignored = [n for n in numbers if signal.getsignal(n) == signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, lambda *_: None)
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def start_cli(*arguments: object, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A command line in a process of its own, its outputs piped unless told otherwise, signals as
    in a terminal; it does not outlive the block."""
    cleared = ("RIVERRUN_DEBUG", "PYTHONUNBUFFERED")
    environment = {k: v for k, v in os.environ.items() if k not in cleared}
    command = [sys.executable, "-m", "riverrun.tools.main", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with default_signals():
        process = subprocess.Popen(command, **{"env": environment, **pipes, **options})
    try:
        yield process
    finally:
        process.kill()
        process.wait()
