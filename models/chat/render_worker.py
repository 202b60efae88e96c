"""Rendering chat templates in a process of their own: a template comes with a model file, and may
ask for more time or memory than there is."""

from __future__ import annotations

import atexit
import contextlib
import json
import marshal
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...graph.errors import RiverrunError, TemplateError
from .render_process import LENGTH

SCRIPT = Path(__file__).with_name("render_process.py")
# What an interpreter needs to start, and what `strftime_now` depends on. Nothing else of the
# environment is a template's business.
INHERITED = ("PATH", "LD_LIBRARY_PATH", "TZ", "LANG", "LC_ALL", "LC_TIME")


@dataclass(frozen=True)
class Limits:
    """What rendering may take: seconds of wall time, bytes of memory of the whole process,
    characters of text."""

    seconds: float = 10.0
    memory: int = 512 << 20
    characters: int = 32 << 20


class RenderWorker:
    """A process that renders chat templates: started when it is first needed, used by any number of
    threads in turns, ended by `close`, at exit, and when a template breaks a limit."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process's id, None where none runs."""
        return self._process.pid if self._process is not None else None

    def render(self, name: str, source: str, values: Mapping[str, Any]) -> str:
        """The text that a template makes of these values, which are of the types that marshal
        knows. name: whose template it is, for messages.

        Raises TemplateError for a template that is wrong, that refuses the values or breaks a
        limit."""
        request = marshal.dumps({"template": source, "values": dict(values)})
        with self._lock:
            try:
                answer = self._ask(request)
            except BaseException:
                # What it says next would be the answer to this request.
                self._end()
                raise
            if answer is None:
                raise TemplateError(f"{name}: {self._cause_of_death()}")
            if answer.get("kind") == "limit":
                self._end()
        return _text(name, answer)

    def close(self) -> None:
        """End the process; it starts again when it is needed."""
        with self._lock:
            self._end()

    def abandon(self) -> None:
        """Let go of a process that belongs to the parent of this one."""
        process, self._process = self._process, None
        self._lock = threading.Lock()
        if process is not None:
            _close_pipes(process)

    def _ask(self, request: bytes) -> dict[str, Any] | None:
        """The answer, None where the process ended instead."""
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._process = self._start()
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None and answers is not None
        try:
            asked.write(LENGTH.pack(len(request)) + request)
            asked.flush()
        except BrokenPipeError:
            return None
        head = answers.read(LENGTH.size)
        if len(head) < LENGTH.size:
            return None
        raw = answers.read(size := LENGTH.unpack(head)[0])
        return json.loads(raw.decode("utf-8", "surrogatepass")) if len(raw) == size else None

    def _start(self) -> subprocess.Popen[bytes]:
        if not sys.executable:
            raise RiverrunError(
                "chat templates are rendered by a Python process of their own, and sys.executable "
                "does not say where Python is; set it"
            )
        path = [folder for folder in sys.path if folder]  # "" is wherever the caller happens to be
        given = json.dumps({"path": path, **asdict(self.limits)})
        # In a session of its own, Ctrl-C in the terminal is not for it.
        return subprocess.Popen(
            [sys.executable, "-I", str(SCRIPT), given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in INHERITED if name in os.environ},
            start_new_session=True,
        )

    def _cause_of_death(self) -> str:
        code = self._process.wait() if self._process is not None else 0
        self._end()
        if code == -signal.SIGALRM:
            return (
                f"the chat template took longer than {self.limits.seconds:g} s; use another one "
                "(chat_template=...)"
            )
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        return (
            f"the process that renders the chat template ended {how}; use another template "
            "(chat_template=...)"
        )

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            _close_pipes(process)


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        # What was not written has no reader any more.
        with contextlib.suppress(OSError):
            if pipe is not None:
                pipe.close()


def _text(name: str, answer: Mapping[str, Any]) -> str:
    if "text" in answer:
        return str(answer["text"])
    kind, error = answer["kind"], answer["error"]
    if kind == "refused":
        raise TemplateError(f"{name}: the chat template refuses these messages: {error}")
    broken = {"limit": "breaks a limit", "unsafe": "does what none may do"}
    if kind in broken:
        raise TemplateError(
            f"{name}: the chat template {broken[kind]}: {error}; use another one "
            "(chat_template=...)"
        )
    raise TemplateError(f"{name}: the chat template failed: {error}")


WORKER = RenderWorker()
atexit.register(WORKER.close)
os.register_at_fork(after_in_child=WORKER.abandon)
