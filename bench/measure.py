"""Timing helpers: repeated measurements and their spread, memory bandwidth."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from ..backends.cpu import CpuBackend

READ_BYTES = 384 << 20
MOST_READ = 2 << 30  # far more than caches hold


@dataclass(frozen=True)
class Times:
    """Durations of repeated runs, in seconds."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median, in seconds."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """(slowest - fastest) / median."""
        return (max(self.seconds) - min(self.seconds)) / self.median

    def rates(self, n: int) -> dict[str, float]:
        """Tokens per second, t_s_*, of runs of n tokens, with the spread of the times."""
        return {
            "t_s_median": n / self.median,
            "t_s_min": n / max(self.seconds),
            "t_s_max": n / min(self.seconds),
            "spread": self.spread,
        }


def repeat(
    run: Callable[[], None], repetitions: int, before: Callable[[], None] = lambda: None
) -> Times:
    """Time `run`, each time after an untimed `before`; one unmeasured pair warms up."""
    seconds = []
    for _ in range(repetitions + 1):
        before()
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return Times(tuple(seconds[1:]))


def read_bandwidth(threads: int, nbytes: int = READ_BYTES, repetitions: int = 5) -> float:
    """Bytes per second that `threads` threads read of nbytes, or of MOST_READ bytes where that is
    less: the fastest of several sweeps. Of what fits into caches, that is their speed."""
    return CpuBackend(threads).read_rate(min(nbytes, MOST_READ), repetitions)


def copy_bandwidth(threads: int, nbytes: int = READ_BYTES, repetitions: int = 5) -> float:
    """Bytes per second that `threads` threads move when they copy nbytes, read and written bytes
    both counted: the fastest of several copies, far larger than the caches."""
    source = np.ones(nbytes // 8, np.float32)
    target = np.zeros_like(source)
    pairs = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:
        times = repeat(lambda: _copy(pool, pairs), repetitions)
    return 2 * source.nbytes / min(times.seconds)


def _copy(pool: ThreadPoolExecutor, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
    for _ in pool.map(lambda pair: np.copyto(*pair), pairs):
        pass
