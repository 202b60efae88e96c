"""Chat templates that ask for what no template needs end as errors, and the next one renders."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli import LIMIT
from riverrun.errors import TemplateError
from riverrun.models.chat.render_worker import INHERITED, Limits, RenderWorker

SECONDS = 1.0
MOST = (256 << 20, 1 << 20)  # bytes of memory, characters of text
VALUES = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture(scope="module")
def worker() -> Iterator[RenderWorker]:
    made = RenderWorker(Limits(LIMIT / 4, *MOST))
    yield made
    made.close()


@pytest.fixture(scope="module")
def hasty() -> Iterator[RenderWorker]:
    made = RenderWorker(Limits(SECONDS, *MOST))
    yield made
    made.close()


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # An orphan may wait for whoever adopts it to take note of its end.
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def wait_for_end(pid: int) -> None:
    deadline = time.monotonic() + LIMIT
    while not is_gone(pid):
        assert time.monotonic() < deadline, f"process {pid} goes on"
        time.sleep(0.02)


LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DEEP = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"
ENDLESS = {"loop": LOOP, "big-number": "{{ 9 ** (9 ** 9) }}"}
HOSTILE = {
    "giant-text": ("{{ 'a' * (1024 ** 3) }}", "memory"),
    "long-text": ("{% for a in range(9999) %}{{ 'a' * 999 }}{% endfor %}", "1048576 characters"),
    "doubling": (
        "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}"
        "{% endfor %}",
        "memory",
    ),
    "many-lists": ("{{ range(99999) | batch(1) | list | tojson * 99999 }}", "memory"),
    "padded": ("{{ '%2000000000d' | format(1) }}", "memory"),
    "deep-macro": (DEEP, "too deeply"),
    "deep-text": ("{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}", "too deeply|failed|ended"),
    "deep-list": ("{{ " + "[" * 3000 + "]" * 3000 + " }}", "too deeply|failed|ended"),
}
FORBIDDEN = {
    "classes": "{{ ''.__class__.__mro__ }}",
    "subclasses": "{{ ().__class__.__base__.__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "closure": "{{ strftime_now.__closure__ }}",
    "attribute": "{{ messages | attr('__class__') }}",
    "map": "{{ [messages] | map(attribute='__class__') | join }}",
    "format": "{{ '{0.__class__.__init__.__globals__}'.format(namespace) }}",
    "format-map": "{{ '{x.__class__}'.format_map(dict(x=1)) }}",
    "cycler": "{{ cycler.__init__.__globals__.os.system('true') }}",
    "lipsum": "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "self": "{{ self.__init__.__globals__ }}",
    "namespace-in": "{% set n = namespace(__class__=1) %}",
    "namespace-set": "{% set n = namespace() %}{% set n._x = 1 %}",
    "changed": "{{ messages.append(1) }}",
    "changed-dict": "{{ messages[0].update(role='x') }}",
    "include": "{% include '/etc/hostname' %}",
    "import": "{% import 'os' as os %}{{ os.name }}",
}


@pytest.mark.parametrize("case", ENDLESS)
def test_time_is_limited(case: str, hasty: RenderWorker) -> None:
    began = time.monotonic()
    with pytest.raises(TemplateError, match="longer than 1 s"):
        hasty.render("file", ENDLESS[case], VALUES)
    assert time.monotonic() - began < LIMIT / 4
    assert hasty.render("file", "{{ messages[0].content }}", VALUES) == "Hi"


@pytest.mark.parametrize("case", HOSTILE)
def test_limits(case: str, worker: RenderWorker) -> None:
    template, words = HOSTILE[case]
    with pytest.raises(TemplateError, match=words):
        worker.render("file", template, VALUES)
    assert worker.render("file", "{{ messages[0].content }}", VALUES) == "Hi"


@pytest.mark.parametrize("case", FORBIDDEN)
def test_nothing_leads_out_of_the_sandbox(case: str, worker: RenderWorker) -> None:
    worker.render("file", "-", {})
    before = worker.pid
    try:
        text = worker.render("file", FORBIDDEN[case], VALUES)
    except TemplateError:
        text = ""
    # Where the sandbox gives an undefined value instead of an error, that is no text.
    assert text == ""
    assert worker.pid == before, "an error of a template needs no other process"


def test_a_template_cannot_change_what_the_next_one_sees(worker: RenderWorker) -> None:
    for template in ("{% set dict = 1 %}{% set tojson = 2 %}{% macro range() %}{% endmacro %}", ""):
        worker.render("file", template, {})
    assert worker.render("file", "{{ dict(a=1) | tojson }}{{ range(2) | list }}", {}) == (
        '{"a": 1}[0, 1]'
    )


def test_the_process_is_used_again_and_replaced_when_it_is_gone(worker: RenderWorker) -> None:
    worker.render("file", "-", {})
    first = worker.pid
    assert worker.render("file", "--", {}) == "--" and worker.pid == first
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_for_end(first)
    assert worker.render("file", "---", {}) == "---" and worker.pid != first


def test_the_process_has_nothing_to_take(worker: RenderWorker) -> None:
    worker.render("file", "-", {})
    root = Path(f"/proc/{worker.pid}")
    if not root.exists():
        pytest.skip("needs /proc")
    names = {part.split(b"=")[0] for part in (root / "environ").read_bytes().split(b"\0") if part}
    # The interpreter itself may set LC_CTYPE.
    assert names <= {*map(str.encode, INHERITED), b"LC_CTYPE"}
    limits = (root / "limits").read_text()
    assert f"Max address space         {MOST[0]}" in limits
    assert "Max file size             0 " in limits


LEFT = """
import os, sys
from riverrun.models.chat import ChatTemplate
from riverrun.models.chat.render_worker import WORKER
ChatTemplate("-", "here").render([{{"role": "user", "content": "x"}}])
print(WORKER.pid, flush=True)
{end}
"""


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_no_process_is_left_behind(end: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEFT.format(end=end)], capture_output=True, timeout=LIMIT
    )
    wait_for_end(int(done.stdout))


def _render_in_child(answers: multiprocessing.Queue[tuple[str, int | None]]) -> None:
    from riverrun.models.chat.render_worker import WORKER

    answers.put((WORKER.render("file", "{{ a }}", {"a": "child"}), WORKER.pid))


def test_a_forked_child_has_a_process_of_its_own() -> None:
    from riverrun.models.chat.render_worker import WORKER

    assert WORKER.render("file", "{{ a }}", {"a": "parent"}) == "parent"
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.Queue[tuple[str, int | None]] = context.Queue()
    child = context.Process(target=_render_in_child, args=(answers,))
    child.start()
    text, pid = answers.get(timeout=LIMIT)
    child.join()
    assert text == "child" and pid != WORKER.pid
    assert WORKER.render("file", "{{ a }}", {"a": "again"}) == "again"


def test_an_interrupt_leaves_the_next_answer_right() -> None:
    code = f"""
import signal, threading, time, os
from riverrun.models.chat.render_worker import RenderWorker
worker = RenderWorker()
worker.render("file", "-", {{}})
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    worker.render("file", {LOOP!r}, {{}})
except KeyboardInterrupt:
    print(worker.render("file", "next", {{}}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (done.stdout, done.stderr) == ("next\n", "")
