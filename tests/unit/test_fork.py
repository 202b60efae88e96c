"""Processes made by fork() after a model was loaded, and threads that the system does not give."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() on this system")

# A process of its own, for a fork() of the test runner would take its other threads' locks along.
# alone(job) runs a job in a child and returns its exit code; a child that hangs is ended by alarm.
PRELUDE = """
import os, signal, sys, threading, traceback
import numpy as np
import riverrun as rr
import riverrun.ops
from riverrun import _cpu
from riverrun.backends.cpu import CpuBackend
from riverrun.backends.base import Pools
from riverrun.graph import Graph
from riverrun.graph.errors import BackendError

def wide(n=64, width=512):
    g = Graph("wide")
    x = g.input("x", (n, width))
    for i in range(4):
        x = g.silu(g.add(x, g.silu(x)))
    g.output("y", x)
    return g

def bind(backend):
    plan = backend.compile(wide())
    bound = plan.bind(plan.own_weights(), Pools(plan.states))
    bound.inputs["x"][...] = np.linspace(-2, 2, bound.inputs["x"].size).reshape(64, 512)
    return bound

def result(bound):
    bound.outputs["y"][...] = 0
    bound.run()
    return bound.outputs["y"].tobytes()

def alone(job):
    child = os.fork()
    if child == 0:
        signal.alarm(40)
        try:
            code = job() or 0
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stderr.flush()
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

backend = CpuBackend(3, oversubscribe=True)
bound = bind(backend)
want = result(bound)
"""


def run(script: str, seconds: float = 100) -> str:
    """Standard output of a process that runs the prelude and a script, which has to succeed."""
    code = PRELUDE + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_fork
def test_a_child_runs_plans_of_its_parent() -> None:
    run("""
        assert alone(lambda: result(bound) != want) == 0
        assert result(bound) == want
    """)


@needs_fork
def test_children_of_children_and_many_of_them() -> None:
    run("""
        def both():
            return result(bound) != want or alone(lambda: result(bound) != want)
        assert [alone(both) for _ in range(4)] == [0] * 4
    """)


@needs_fork
def test_a_child_that_never_ran_may_fork_too() -> None:
    run("assert alone(lambda: alone(lambda: result(bound) != want)) == 0")


@needs_fork
def test_a_child_may_drop_what_it_inherited_used_or_not() -> None:
    run("""
        def drop():
            global bound, backend
            del bound, backend
        def use_and_drop():
            assert result(bound) == want
            drop()
        assert alone(drop) == 0 and alone(use_and_drop) == 0
        assert result(bound) == want
    """)


@needs_fork
def test_a_child_may_make_a_pool_of_its_own() -> None:
    run("""
        def fresh():
            return result(bind(CpuBackend(2, oversubscribe=True))) != want
        assert alone(fresh) == 0
    """)


@needs_fork
@pytest.mark.parametrize("used", [True, False])
def test_an_interpreter_ends_in_a_child(used: bool) -> None:
    out = run(f"""
        child = os.fork()
        if child == 0:
            signal.alarm(40)
            if {used}:
                assert result(bound) == want
            print("child ends", flush=True)
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        print("parent ends")
    """)
    assert out == "child ends\nparent ends\n"


@needs_fork
def test_two_threads_of_a_child_start_its_threads_once() -> None:
    run("""
        bounds = [bound, bind(backend)]
        def both():
            got = [[], []]
            work = lambda i: got[i].extend(result(bounds[i]) == want for _ in range(20))
            threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            return got != [[True] * 20] * 2
        assert [alone(both) for _ in range(5)] == [0] * 5
    """)


@needs_fork
def test_a_fork_in_the_middle_of_another_threads_runs() -> None:
    run("""
        busy, stop = bind(backend), threading.Event()
        def work():
            while not stop.is_set():
                busy.run()
        thread = threading.Thread(target=work)
        thread.start()
        try:
            codes = [alone(lambda: [result(b) for b in (bound, busy)] != [want] * 2)
                     for _ in range(20)]
        finally:
            stop.set()
            thread.join()
        assert codes == [0] * 20, codes
    """)


@needs_fork
@pytest.mark.usefixtures("all_processors")
def test_a_model_that_was_loaded_before_the_fork_serves_in_every_child() -> None:
    run("""
        import multiprocessing
        model = rr.load(rr.DEMO_MODEL, device="cpu", threads=2)
        def text(_=None):
            return model.generate("def f(", max_tokens=8, temperature=0).result.text
        said = text()
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map_async(text, range(4)).get(60) == [said] * 4
        assert text() == said
    """)


# Address space for some threads and not for all; the stacks alone of so many need gigabytes.
LIMIT = """
import resource
def limit(more):
    pages = int(open("/proc/self/statm").read().split()[0])
    size = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
"""
limited = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the limit is measured in Linux's files"
)


@limited
def test_threads_that_cannot_be_started_are_an_error_with_their_number() -> None:
    out = run(
        LIMIT
        + """
limit(200 << 20)
try:
    CpuBackend(900, oversubscribe=True)
except BackendError as error:
    print(error)
unlimited = resource.RLIM_INFINITY
resource.setrlimit(resource.RLIMIT_AS, (unlimited, unlimited))
assert result(bound) == want
again = CpuBackend(5, oversubscribe=True)
assert result(bind(again)) == want
"""
    )
    words = out.split()
    assert out.startswith("threads: the system let ") and "of 900 be started" in out
    assert "ask for fewer with threads= (-t), or raise its limits on memory" in out
    assert 1 <= int(words[4]) < 900


@needs_fork
def test_a_child_that_gets_no_threads_says_so() -> None:
    out = run("""
        import resource
        def job():
            if os.getuid() == 0:
                os.setuid(65534)  # no limit on processes binds the superuser
            resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
            try:
                threading.Thread(target=int).start()
                print("not limited", flush=True)
                return
            except RuntimeError:
                pass
            for call in (bound.run, backend.fma_rate):
                try:
                    call()
                    return 3
                except BackendError as error:
                    assert "let 1 of 3 be started" in str(error), error
        assert alone(job) == 0
    """)
    if "not limited" in out:
        pytest.skip("this system does not limit the processes of a user")


def test_other_threads_run_while_a_pool_starts() -> None:
    run("""
        ticks = []
        def tick():
            while not ticks or ticks[-1] is not None:
                ticks.append(0)
                threading.Event().wait(0.0001)
        # With so long an interval nobody is made to give the interpreter's lock up.
        sys.setswitchinterval(60)
        thread = threading.Thread(target=tick, daemon=True)
        thread.start()
        most = 0
        for _ in range(10):
            before = len(ticks)
            _cpu.ThreadPool(300)
            most = max(most, len(ticks) - before)
        assert most >= 1
    """)
