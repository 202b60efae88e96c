"""How many threads are used when nobody says: affinity and cgroup quotas."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from riverrun.backends import cpu
from riverrun.backends.cpu import CpuBackend, _cgroup_quota, default_threads
from riverrun.graph.errors import BackendError


def unified(root: Path, text: str) -> Path:
    (root / "cpu.max").write_text(text)
    return root


def legacy(root: Path, quota: str, period: str) -> Path:
    (root / "cpu").mkdir()
    (root / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (root / "cpu" / "cpu.cfs_period_us").write_text(period)
    return root


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("max 100000\n", None),
        ("400000 100000\n", 4),
        ("250000 100000\n", 2),
        ("50000 100000\n", 1),
        ("100000 0\n", None),
        ("nonsense\n", None),
        ("some thing\n", None),
        ("", None),
    ],
)
def test_quota_of_a_unified_hierarchy(tmp_path: Path, text: str, want: int | None) -> None:
    assert _cgroup_quota(unified(tmp_path, text)) == want


@pytest.mark.parametrize(
    ("quota", "period", "want"),
    [
        ("-1\n", "100000\n", None),
        ("300000\n", "100000\n", 3),
        ("10000\n", "100000\n", 1),
        ("300000\n", "0\n", None),
        ("\n", "\n", None),
    ],
)
def test_quota_of_a_legacy_hierarchy(
    tmp_path: Path, quota: str, period: str, want: int | None
) -> None:
    assert _cgroup_quota(legacy(tmp_path, quota, period)) == want


def test_the_unified_hierarchy_counts_first(tmp_path: Path) -> None:
    legacy(tmp_path, "300000", "100000")
    assert _cgroup_quota(unified(tmp_path, "200000 100000")) == 2


def test_no_cgroup_is_no_quota(tmp_path: Path) -> None:
    assert _cgroup_quota(tmp_path) is None


@pytest.mark.parametrize(
    ("allowed", "quota", "want"), [(8, None, 8), (8, 3, 3), (2, 16, 2), (1, 1, 1)]
)
def test_default_is_what_affinity_and_quota_allow(
    monkeypatch: pytest.MonkeyPatch, allowed: int, quota: int | None, want: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(allowed)), raising=False)
    monkeypatch.setattr(cpu, "_cgroup_quota", lambda: quota)
    assert default_threads() == want


@pytest.mark.parametrize(("count", "want"), [(6, 6), (None, 1)])
def test_default_without_affinity_counts_processors(
    monkeypatch: pytest.MonkeyPatch, count: int | None, want: int
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    monkeypatch.setattr(cpu, "_cgroup_quota", lambda: None)
    assert default_threads() == want


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_default_follows_the_real_affinity() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert default_threads() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_the_pool_has_as_many_threads_as_asked() -> None:
    assert [CpuBackend(n).pool.size for n in (1, 2, 3)] == [1, 2, 3]


def test_an_unknown_instruction_set_level_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIVERRUN_ISA", "sse9")
    with pytest.raises(BackendError, match=r"one of base, avx2, .*, got 'sse9'"):
        CpuBackend(1)
