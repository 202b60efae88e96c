"""Runs small cases of every op on the card: what compute-sanitizer looks at.

`compute-sanitizer --tool memcheck python tests/cuda/sanitized.py`. At most MOST cases of an op, the
smallest of every combination of types first, because a sanitizer slows kernels down a hundredfold.
Exits with 1 when a case fails."""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np
from riverrun.backends import open_backend
from riverrun.backends.harness import run_case
from riverrun.bench.op_cases import small_cases
from riverrun.graph.case import BoundCase

MOST = 12


def chosen() -> list[BoundCase]:
    """The cases, of each op the smallest, and one of every combination of types first."""
    cases, seen = sorted(small_cases(), key=_elements), set()
    firsts, others = [], []
    for case in cases:
        types = (case.op.name, *(i.dtype.name if i else "" for i in case.inputs))
        (others if types in seen else firsts).append(case)
        seen.add(types)
    taken = Counter[str]()
    found = []
    for case in firsts + others:
        taken[case.op.name] += 1
        if taken[case.op.name] <= MOST:
            found.append(case)
    return found


def _elements(case: BoundCase) -> int:
    return sum(int(np.prod(i.shape)) for i in case.inputs if i is not None)


def main() -> int:
    """Run them in both kinds of plan."""
    backend = open_backend("cuda")
    failed, cases = 0, chosen()
    for case in cases:
        for kind in ("step", "prefill"):
            result = run_case(backend, case, kind)
            if result.status == "failed":
                failed += 1
                print(f"failed {kind} {result.id}: {result.why}")
    print(f"{len(cases)} cases, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
