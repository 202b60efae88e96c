"""Runs the ops' small cases on the CPU backend in one process and prints what is not right.

`python tests/run_cases.py [OP ...]`; RIVERRUN_ISA caps the instruction set, which a process reads
once. Exits with 1 when a case fails."""

from __future__ import annotations

import sys

import riverrun.models.quant
import riverrun.ops  # noqa: F401
from riverrun.backends.cpu import CpuBackend, instruction_sets
from riverrun.backends.harness import run_case
from riverrun.graph import OPS
from riverrun.graph.case import BoundCase, op_cases


def small_cases(names: list[str] | None = None) -> list[BoundCase]:
    """All cases but those for measuring, of the named ops or of all."""
    found = [case for name in names or sorted(OPS) for case in op_cases(OPS[name])]
    return [case for case in found if "perf" not in case.tags]


def main(names: list[str]) -> int:
    """Run and report."""
    backend = CpuBackend(2)
    results = [run_case(backend, case) for case in small_cases(names)]
    for result in results:
        if result.status != "passed":
            print(f"{result.status} {result.id}: {result.why}")
    counts = {s: sum(r.status == s for r in results) for s in ("passed", "refused", "failed")}
    print(f"{instruction_sets()[-1]}: {counts}")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
