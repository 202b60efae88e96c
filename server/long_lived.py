"""What Python's garbage collector passes over, in a process that serves.

The plans of a model are up to some millions of objects, which live as long as it does. Each full
collection walks through all of them, for 0.7 s with 200 plans of 64 layers, and nothing steps
meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_passes_over = False


@contextmanager
def passing_over() -> Iterator[None]:
    """Within it `made` and `gone` have an effect: it is one on all of the process."""
    global _passes_over
    _passes_over = True
    try:
        yield
    finally:
        _passes_over = False
        gc.unfreeze()


def made() -> None:
    """What there is now will live long: it is looked at once more, and then no longer."""
    if _passes_over:
        gc.collect()
        gc.freeze()


def gone() -> None:
    """Some of it is not needed any more: all is looked at again, once."""
    if _passes_over:
        gc.unfreeze()
        made()
