"""Tests of a file at a lower level of the instruction set, which a process reads once."""

from __future__ import annotations

import os
import subprocess
import sys


def check_at(isa: str, file: str, chosen: str) -> None:
    """Run those tests of a file that pytest's `-k chosen` takes, in a process of their own; raises
    AssertionError with what it says where one fails. The plugins around pytest stay away, for
    loading them takes longer than many files."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", file]
    done = subprocess.run(
        [*command, "-k", chosen],
        env=os.environ | {"RIVERRUN_ISA": isa, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def integers_only(isa: str) -> bool:
    """Whether a level differs from the one below it in products with blocks of integers alone."""
    return isa.endswith(("vnni", "dotprod", "i8mm"))
