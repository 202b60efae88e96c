"""Every case of every op on the CPU backend against the numpy reference, at every level of the
instruction set."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from lower_levels import integers_only
from one_op import cpu
from paths import ROOT
from riverrun.backends.cpu import instruction_sets
from riverrun.backends.harness import run_case
from riverrun.graph import OPS
from riverrun.graph.case import BoundCase
from run_cases import small_cases

CASES = small_cases()


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_cpu_agrees_with_the_reference(case: BoundCase) -> None:
    result = run_case(cpu(2), case)
    assert result.status == "passed", result.why


@pytest.mark.parametrize("isa", instruction_sets()[:-1])
def test_lower_instruction_sets_agree_too(isa: str) -> None:
    runner = [sys.executable, str(ROOT / "tests" / "run_cases.py")]
    if integers_only(isa):
        runner += [name for name in OPS if "mul_mat" in name]
    environment = os.environ | {"RIVERRUN_ISA": isa}
    done = subprocess.run(runner, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, summary = done.stdout.splitlines()
    assert summary.startswith(f"{isa}: ")
    assert not lines, "cases that are refused"
