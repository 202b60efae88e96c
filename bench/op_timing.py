"""How fast a backend runs cases, against what its machine can do."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..backends import Backend
from ..backends.harness import CaseResult, Trial, build, run_case
from ..graph.case import BoundCase
from .measure import copy_bandwidth, repeat

SAMPLE_S = 0.02
REPETITIONS = 5


@dataclass(frozen=True)
class Ceilings:
    """What the backend's threads reach at best: bytes a second when copying large arrays, read
    and written bytes counted; f32 operations a second in multiply-adds, None where unknown."""

    copy: float
    fma: float | None


@dataclass(frozen=True)
class OpTime:
    """A checked case and, if it passed, the seconds of a run, and the bytes and operations that
    the op says it takes."""

    result: CaseResult
    seconds: float = 0.0
    moved: int = 0
    flops: int = 0

    @property
    def bytes_per_second(self) -> float:
        """Bytes read and written, per second."""
        return self.moved / self.seconds if self.seconds else 0.0

    @property
    def flops_per_second(self) -> float:
        """Operations per second."""
        return self.flops / self.seconds if self.seconds else 0.0


def measure_ceilings(backend: Backend) -> Ceilings:
    """Measured now, with the backend's threads."""
    copy = backend.copy_rate() or copy_bandwidth(backend.threads or 1)
    return Ceilings(copy, backend.fma_rate())


def time_case(backend: Backend, case: BoundCase, kind: str = "step") -> OpTime:
    """Check a case and, if it passed, time it: the median of five samples of 20 ms or of one run,
    whichever is longer, on the same memory throughout."""
    result = run_case(backend, case, kind)
    if result.status != "passed":
        return OpTime(result)
    built = build(case)
    cost = case.op.cost(*built.node.input_specs())
    bound = Trial(backend, built, kind).bound
    bound.run()
    began = time.perf_counter()
    bound.run()
    runs = max(1, int(SAMPLE_S / max(1e-7, time.perf_counter() - began)))

    def sample() -> None:
        for _ in range(runs):
            bound.run()

    seconds = repeat(sample, REPETITIONS).median / runs
    return OpTime(result, seconds, cost.read + cost.write, cost.flops)


def time_cases(
    backend: Backend,
    cases: Sequence[tuple[str, BoundCase]],
    progress: Callable[[OpTime], None] = lambda row: None,
) -> list[OpTime]:
    """Time all (plan kind, case); progress is told of each."""
    rows = []
    for kind, case in cases:
        rows.append(time_case(backend, case, kind))
        progress(rows[-1])
    return rows
