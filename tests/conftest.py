"""What holds for every test: what it registers goes with it; those left out are told at the end."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import own_share
import pytest
from riverrun.graph import OPS
from riverrun.models.architecture import ARCHITECTURES
from riverrun.speculative.drafter import DRAFTERS

REGISTRIES: tuple[dict[str, Any], ...] = (OPS, ARCHITECTURES, DRAFTERS)
MOST_REASONS = 4


def strangers() -> set[str]:
    """Registered names of what riverrun did not define."""
    return {
        name
        for registry in REGISTRIES
        for name, made in registry.items()
        if not made.__module__.startswith("riverrun.")
    }


@pytest.fixture
def all_processors() -> Iterator[None]:
    """For tests that need several threads, not asked for with `oversubscribe`."""
    with own_share.all_processors():
        yield


@pytest.fixture(autouse=True)
def nothing_stays_registered() -> Iterator[None]:
    """Fails a test that leaves something registered, for later tests would meet it."""
    before = strangers()
    yield
    left = strangers() - before
    for registry in REGISTRIES:
        for name in left & set(registry):
            del registry[name]
    assert not left, f"still registered: {', '.join(sorted(left))}"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line: how many tests were skipped, and why, the most frequent reasons first."""
    reports = terminalreporter.stats.get("skipped", [])
    if reports:
        terminalreporter.write_line(summary([reason_of(report) for report in reports]))


def reason_of(report: Any) -> str:
    """Why a test was skipped; names of single files are left out, so that like reasons are one."""
    where = report.longrepr
    text = str(where[2] if isinstance(where, tuple) else where).removeprefix("Skipped: ")
    return re.sub(r"^shared file \S+ is", "data files are", text)


def summary(reasons: list[str]) -> str:
    """The line for these reasons, one for each test that was skipped."""
    counts = Counter(reasons).most_common()
    parts = [f"{count}: {reason}" for reason, count in counts[:MOST_REASONS]]
    rest = sum(count for _, count in counts[MOST_REASONS:])
    return f"{len(reasons)} skipped ({'; '.join(parts + [f'{rest}: other reasons'] * bool(rest))})"
