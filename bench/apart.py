"""Something that is measured in a process of its own, one test at a time.

The process answers each request, a line of JSON on standard input, with a row of results, after a
line that says it is ready. A process apart keeps another engine's threads, log and aborts
away from riverrun, and has instruction sets of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import IO, Any

from ..graph.errors import BackendError
from .throughput import Workload

Row = dict[str, Any]


def read_names(text: str, known: Sequence[str], what: str) -> tuple[str, ...]:
    """The names of "NAME,NAME...". Raises ValueError for one that is not known, and for one that
    comes twice."""
    names = tuple(text.split(","))
    for name in names:
        if name not in known:
            raise ValueError(f"expected {what}s of {', '.join(known)}, got {name!r}")
    if len(set(names)) < len(names):
        raise ValueError(f"expected each {what} once, got {text!r}")
    return names


class Apart:
    """The process. Raises BackendError when it fails, with the last line that it said."""

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """name: in messages; module: run with the arguments, and with these environment variables
        beside those of this process."""
        self.name = name
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **(variables or {})},
            text=True,
        )
        try:
            self.ready = self._answer()
        except BaseException:
            self.close()
            raise

    def measure(self, test: Workload, repetitions: int) -> Row:
        """A row of results like those of `throughput.Bench.measure`."""
        return self.ask({"test": asdict(test), "repetitions": repetitions})

    def ask(self, request: object) -> Row:
        """What it answers. Raises BackendError where the process failed."""
        assert self._process.stdin is not None
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise self._failure() from None
        row: Row = self._answer()
        return row

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failure()
        return json.loads(line)

    def _failure(self) -> BackendError:
        self._process.wait()
        self._log.seek(0)
        log = self._log.read().decode("utf-8", "replace").splitlines()
        # Its own last line on the fault says more than the exception of the bindings after it.
        lines = [line.strip() for line in log if line.strip()] or ["no message"]
        last = [line for line in lines if "error" in line and "Error" not in line] or lines
        code = self._process.returncode
        how = (
            f"was ended by {signal.Signals(-code).name}" if code < 0 else f"failed with code {code}"
        )
        return BackendError(f"{self.name} {how}: {last[-1]}")


def answer(ready: object, measure: Callable[[Workload, int], Row]) -> None:
    """The loop of such a process that is asked by `Apart.measure`."""
    serve(ready, lambda asked: measure(Workload(**asked["test"]), asked["repetitions"]))


def serve(ready: object, respond: Callable[[Any], Row]) -> None:
    """The loop of such a process."""
    print(json.dumps(ready), flush=True)
    for line in sys.stdin:
        print(json.dumps(respond(json.loads(line))), flush=True)
