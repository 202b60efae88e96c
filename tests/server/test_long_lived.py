"""What the garbage collector passes over while a server runs."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
from riverrun.server import long_lived


class Ring:
    """Refers to itself, so that only the collector frees it."""

    def __init__(self) -> None:
        self.self = self


@pytest.fixture(autouse=True)
def nothing_frozen() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_nothing_happens_outside_a_server() -> None:
    long_lived.made()
    long_lived.gone()
    assert gc.get_freeze_count() == 0


def test_what_was_made_is_passed_over_until_some_of_it_is_gone() -> None:
    before, ring = Ring(), Ring()
    early, late = weakref.ref(before), weakref.ref(ring)
    with long_lived.passing_over():
        del before
        long_lived.made()
        assert early() is None and gc.get_freeze_count() > 0
        del ring
        gc.collect()
        assert late() is not None
        long_lived.gone()
        assert late() is None and gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


def test_an_exception_ends_it_too() -> None:
    with pytest.raises(KeyError), long_lived.passing_over():
        long_lived.made()
        raise KeyError
    assert gc.get_freeze_count() == 0
    long_lived.made()
    assert gc.get_freeze_count() == 0
