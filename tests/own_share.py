"""Each process of a parallel run keeps to its share of the processors.

Otherwise all of them start as many threads as there are processors, and threads that wait for each
other spin on processors that another process needs. Imported before numpy, which counts processors
once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

ALL = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
TAKEN = "RIVERRUN_TESTS_SHARE"  # set for processes that a test starts: they have the share already


def share(processors: set[int], worker: int, workers: int) -> set[int]:
    """The processors of one of so many processes: as many for each, or one that others have too."""
    ordered = sorted(processors)
    return set(ordered[worker::workers]) or {ordered[worker % len(ordered)]}


def take() -> None:
    """Keep this process and those it starts to its share, where pytest-xdist started it."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if ALL and worker.startswith("gw") and TAKEN not in os.environ:
        workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        os.sched_setaffinity(0, share(ALL, int(worker[2:]), workers))
        os.environ[TAKEN] = worker


@contextmanager
def all_processors() -> Iterator[None]:
    """Within, this thread may use all of them: for what needs several threads of the library."""
    if not ALL:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, ALL)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


take()
