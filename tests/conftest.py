"""What a run of the tests says at its end about those that it left out."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

MOST_REASONS = 4


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
