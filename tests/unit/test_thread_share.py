"""How many threads a job uses while other programs keep the processors busy."""

from __future__ import annotations

import pytest
from riverrun._cpu import ThreadShare

BLOCK, REST = 3, 64  # jobs that are judged together, and until all threads are used again
JOB = 7


def feed(share: ThreadShare, times: dict[int, int], slept: float, n: int, job: int = JOB) -> None:
    """n jobs that take a number of nanoseconds which depends on the threads in use."""
    for _ in range(n):
        took = times[share.threads]
        share.learn(job, took, int(slept * took))


@pytest.mark.parametrize("most", [1, 2, 16])
def test_all_threads_are_used_where_none_sleeps(most: int) -> None:
    share = ThreadShare(most)
    for job in range(500):
        assert share.threads == most
        share.learn(job % 3, 1000 + job % 7, 200)


def test_one_slow_job_changes_nothing() -> None:
    share = ThreadShare(4)
    for i in range(300):
        assert share.threads == 4
        late = i % 50 == 0
        share.learn(JOB, 2000 if late else 1000, 1100 if late else 0)


def test_fewer_threads_stay_while_they_are_faster_and_then_all_come_back() -> None:
    share, times = ThreadShare(2), {2: 5000, 1: 2000}
    feed(share, times, 0.6, BLOCK)
    assert share.threads == 1
    feed(share, times, 0.0, BLOCK + REST - 1)
    assert share.threads == 1
    feed(share, times, 0.0, 1)
    assert share.threads == 2


def test_threads_are_halved_as_long_as_that_helps() -> None:
    share, times = ThreadShare(12), {12: 9000, 6: 6000, 3: 4000, 2: 3900}
    for want in (6, 3, 2):
        feed(share, times, 0.5, BLOCK)
        assert share.threads == want
    feed(share, times, 0.5, BLOCK)
    assert share.threads == 3, "two were not a tenth faster than three"
    feed(share, times, 0.5, REST)
    assert share.threads == 12


def test_waits_that_fewer_threads_do_not_shorten_cost_a_few_jobs_of_many() -> None:
    """Work that cannot be split evenly lets thread 0 sleep on a quiet machine too."""
    share, times, by_half = ThreadShare(4), {4: 1000, 2: 1900}, 0
    for _ in range(1000):
        by_half += share.threads == 2
        feed(share, times, 0.4, 1)
    assert 0 < by_half <= (1000 // (REST + 2 * BLOCK) + 1) * BLOCK


def test_jobs_of_other_plans_are_not_compared() -> None:
    share = ThreadShare(2)
    for i in range(400):
        share.learn(i % 2, 5000, 4000)
        assert share.threads == 2
    feed(share, {2: 5000, 1: 9000}, 0.6, BLOCK, job=5)
    assert share.threads == 1
    share.learn(6, 100, 0)
    assert share.threads == 2, "a trial ends where another plan runs"
