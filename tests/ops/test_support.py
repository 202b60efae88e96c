"""What backends support does not shrink: counts of cases against tests/ops/support.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from paths import ROOT
from riverrun.backends import open_backend
from riverrun.bench.op_support import losses, support_table

STORED = Path(ROOT / "tests" / "ops" / "support.json")
BACKENDS = ("cpu", "reference")


def test_no_support_is_lost() -> None:
    stored = json.loads(STORED.read_text())
    now = support_table([open_backend(name) for name in BACKENDS])
    assert losses(stored, now) == [], "make support, if that is meant"
    assert set(now) == set(stored), "make support"


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_stored_counts_are_of_all_backends(backend: str) -> None:
    stored = json.loads(STORED.read_text())
    assert stored and all(0 <= row[backend] <= row["cases"] for row in stored.values())
