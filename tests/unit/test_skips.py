"""The line about skipped tests at the end of a run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from paths import ROOT

TESTS = """
import pytest
from paths import shared

@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_of_data(name):
    shared("no-such-folder", name)

@pytest.mark.skipif(True, reason="no card is here")
def test_of_a_card(): pass

def test_that_runs(): pass
"""


def test_reasons_are_counted(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "conftest.py").symlink_to(ROOT / "tests" / "conftest.py")
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", ROOT / "pyproject.toml")
    done = subprocess.run(
        [sys.executable, *map(str, command), "--rootdir", str(tmp_path), "test_some.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = "4 skipped (3: data files are not beside this checkout; 1: no card is here)"
    assert done.returncode == 0 and said in done.stdout, done.stdout + done.stderr
