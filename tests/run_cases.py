"""Runs the ops' small cases on the CPU backend in one process and prints what is not right.

`python tests/run_cases.py [OP ...]`; RIVERRUN_ISA caps the instruction set, which a process reads
once. Exits with 1 when a case fails. `riverrun test-ops` does the same, and more."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import riverrun.ops  # noqa: F401
from riverrun.backends.cpu import CpuBackend, instruction_sets
from riverrun.bench.op_cases import STATUSES, run_cases, small_cases, summary
from riverrun.graph.case import BoundCase

__all__ = ["first_of_patterns", "main", "small_cases"]


def first_of_patterns(cases: Sequence[BoundCase]) -> list[BoundCase]:
    """The first case of each op with the same types and ranks of operands."""

    def pattern(case: BoundCase) -> tuple[object, ...]:
        kinds = ((d.dtype.name, len(d.shape)) if d is not None else None for d in case.inputs)
        return case.op.name, *kinds

    return list({pattern(case): case for case in reversed(cases)}.values())


def main(names: list[str]) -> int:
    """Run and report."""
    cases = [("step", case) for case in small_cases(names)]
    results = run_cases(CpuBackend(2, oversubscribe=True), cases)
    for result in results:
        if result.status != "passed":
            print(f"{result.status} {result.id}: {result.why}")
    counts = {status: summary(results)[status] for status in STATUSES}
    print(f"{instruction_sets()[-1]}: {counts}")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
