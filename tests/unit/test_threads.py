"""How many threads run: affinity, physical cores, cgroup quotas, and numbers that are asked for."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
from cli import run_cli
from riverrun.backends import cpu, processors
from riverrun.backends.cpu import CpuBackend, instruction_sets
from riverrun.backends.processors import (
    MAX_THREADS,
    _cgroup_quota,
    _cores,
    available_processors,
    default_threads,
)
from riverrun.graph.errors import BackendError


def unified(root: Path, text: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    (root / "cpu.max").write_text(text)
    return root


def legacy(root: Path, quota: str, period: str) -> Path:
    (root / "cpu").mkdir(parents=True)
    (root / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (root / "cpu" / "cpu.cfs_period_us").write_text(period)
    return root


def own(tmp_path: Path, text: str) -> Path:
    """What /proc/self/cgroup says."""
    path = tmp_path / "own"
    path.write_text(text)
    return path


def siblings(root: Path, lists: dict[int, str]) -> Path:
    """Processors with the lists of those that share their cores."""
    for n, text in lists.items():
        folder = root / f"cpu{n}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(text)
    return root


@pytest.fixture
def allow(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretends that the process may use so many processors, two to a core if so said."""

    def pretend(processors_: int, quota: int | None = None, per_core: int = 1) -> None:
        monkeypatch.setattr(processors, "_allowed", lambda: set(range(processors_)))
        monkeypatch.setattr(processors, "_cgroup_quota", lambda: quota)
        monkeypatch.setattr(processors, "_siblings", lambda folder, n: str(n // per_core))

    return pretend


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
    assert _cgroup_quota(unified(tmp_path, text), own(tmp_path, "0::/\n")) == want


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
    assert _cgroup_quota(legacy(tmp_path, quota, period), tmp_path / "none") == want


@pytest.mark.parametrize(
    ("at_top", "above", "inside", "want"),
    [(8, 5, 3, 3), (8, 2, 3, 2), (1, 5, 3, 1), (None, 5, None, 5), (None, None, None, None)],
)
@pytest.mark.parametrize("form", ["unified", "legacy"])
def test_the_least_quota_of_the_own_group_and_those_above_it(
    tmp_path: Path, at_top: int | None, above: int | None, inside: int | None, want: int, form: str
) -> None:
    root = tmp_path / "groups"
    for path, n in (("", at_top), ("a", above), ("a/b", inside), ("a/other", 1)):
        top = root if form == "unified" else root / "cpu"
        folder = top / path
        folder.mkdir(parents=True, exist_ok=True)
        if n and form == "unified":
            unified(folder, f"{n}00000 100000\n")
        elif n:
            (folder / "cpu.cfs_quota_us").write_text(f"{n}00000\n")
            (folder / "cpu.cfs_period_us").write_text("100000\n")
    lines = {"unified": "0::/a/b\n", "legacy": "5:memory:/a/other\n4:cpu,cpuacct:/a/b\n0::/\n"}
    assert _cgroup_quota(root, own(tmp_path, lines[form])) == want


def test_a_group_that_is_not_mounted_here_leaves_those_above_it(tmp_path: Path) -> None:
    root = unified(tmp_path / "groups", "200000 100000\n")
    assert _cgroup_quota(root, own(tmp_path, "0::/docker/5e1f\n")) == 2


def test_the_smaller_of_both_hierarchies_counts(tmp_path: Path) -> None:
    legacy(tmp_path, "300000", "100000")
    assert _cgroup_quota(unified(tmp_path, "200000 100000"), tmp_path / "none") == 2


def test_no_cgroup_is_no_quota(tmp_path: Path) -> None:
    assert _cgroup_quota(tmp_path, tmp_path / "none") is None


@pytest.mark.parametrize(
    ("lists", "asked", "want"),
    [
        ({0: "0,2\n", 1: "1,3\n", 2: "0,2\n", 3: "1,3\n"}, (0, 1, 2, 3), 2),
        ({0: "0-1\n", 1: "0-1\n", 2: "2-3\n", 3: "2-3\n"}, (0, 1, 2), 2),
        ({0: "0-1\n", 1: "0-1\n"}, (0, 1), 1),
        ({0: "0\n", 1: "1\n"}, (0, 1), 2),
        ({}, (0, 1, 5), 3),
    ],
)
def test_processors_that_share_a_core_count_once(
    tmp_path: Path, lists: dict[int, str], asked: tuple[int, ...], want: int
) -> None:
    assert _cores(asked, siblings(tmp_path, lists)) == want


@pytest.mark.parametrize(
    ("allowed", "quota", "per_core", "want"),
    [(8, None, 1, 8), (8, 3, 1, 3), (2, 16, 1, 2), (1, 1, 1, 1), (8, None, 2, 4), (8, 3, 2, 3)],
)
def test_default_is_what_cores_affinity_and_quota_allow(
    allow: Any, allowed: int, quota: int | None, per_core: int, want: int
) -> None:
    allow(allowed, quota, per_core)
    assert default_threads() == want
    assert CpuBackend().threads == want


@pytest.mark.parametrize(("count", "want"), [(6, 6), (None, 1)])
def test_default_without_affinity_counts_processors(
    monkeypatch: pytest.MonkeyPatch, count: int | None, want: int
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    monkeypatch.setattr(processors, "_cgroup_quota", lambda: None)
    monkeypatch.setattr(processors, "_siblings", lambda folder, n: str(n))
    assert default_threads() == available_processors() == want


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_default_follows_the_real_affinity() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert default_threads() == available_processors() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_the_pool_has_as_many_threads_as_asked(allow: Any) -> None:
    allow(4, per_core=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [CpuBackend(n).pool.size for n in (1, 2, 3, 4)] == [1, 2, 3, 4]


@pytest.mark.parametrize(("asked", "allowed", "quota"), [(3, 2, None), (64, 1, None), (5, 8, 4)])
def test_more_threads_than_processors_are_left_out_with_a_warning(
    allow: Any, asked: int, allowed: int, quota: int | None
) -> None:
    allow(allowed, quota)
    run = min(allowed, quota or allowed)
    with pytest.warns(UserWarning, match=rf"^threads: {asked} were asked for, and {run} run, one"):
        backend = CpuBackend(asked)
    assert backend.threads == backend.pool.size == run


def test_checks_may_have_more_threads_than_processors(allow: Any) -> None:
    allow(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert CpuBackend(5, oversubscribe=True).pool.size == 5


@pytest.mark.parametrize("asked", [0, -1, MAX_THREADS + 1, 10**30, 2.5, True, "2"])
def test_numbers_beyond_reason_are_refused_with_the_range(allow: Any, asked: Any) -> None:
    allow(2)
    with pytest.raises(BackendError, match=rf"from 1 to {MAX_THREADS}, got {asked!r}"):
        CpuBackend(asked)


def test_a_machine_of_more_processors_may_use_them_all(allow: Any) -> None:
    allow(MAX_THREADS + 5)
    with pytest.raises(BackendError, match=rf"from 1 to {MAX_THREADS + 5}, got 9999"):
        CpuBackend(9999)


def test_an_unknown_instruction_set_level_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIVERRUN_ISA", "sse9")
    with pytest.raises(BackendError, match=r"one of base, avx2, .*, got 'sse9'"):
        CpuBackend(1)


@pytest.mark.parametrize(
    "levels, asked",
    [
        (["base"], "avx512"),
        (["base", "avx2"], "avx512"),
        (["base", "avx2"], "dotprod"),
        (["base", "dotprod"], "i8mm"),
    ],
)
def test_a_level_that_the_processor_lacks_is_reported(
    monkeypatch: pytest.MonkeyPatch, levels: list[str], asked: str
) -> None:
    monkeypatch.setattr(cpu._cpu, "isas", lambda: levels)
    monkeypatch.setenv("RIVERRUN_ISA", asked)
    want = f"asks for {asked} kernels, which this processor lacks; {levels[-1]} ones are used"
    with pytest.warns(UserWarning, match=want):
        CpuBackend(1)


def test_a_level_that_is_set_too_late_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu._cpu, "isas", lambda: ["base", "avx2"])
    monkeypatch.setenv("RIVERRUN_ISA", "base")
    with pytest.warns(UserWarning, match="but was set after it was read; avx2 ones are used"):
        CpuBackend(1)


@pytest.mark.parametrize("value", ["", None, "avx2"])
def test_no_level_or_the_one_in_use_needs_no_words(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.setattr(cpu._cpu, "isas", lambda: ["base", "avx2"])
    monkeypatch.delenv("RIVERRUN_ISA", raising=False)
    if value is not None:
        monkeypatch.setenv("RIVERRUN_ISA", value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CpuBackend(1)
        assert instruction_sets() == ["base", "avx2"]


def test_the_command_warns_of_threads_that_are_left_out(
    allow: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    allow(1)
    command = ("run", "--device", "cpu", "--tokens", "5,7", "-n", 3, "--temp", 0, "-t")
    asked = run_cli(capsys, *command, 9)
    one = run_cli(capsys, *command, 1)
    assert asked.code == one.code == 0 and asked.out == one.out
    assert "riverrun: warning: threads: 9 were asked for, and 1 run" in asked.err
    assert "on cpu, threads 1" in asked.err and "warning" not in one.err


def test_the_command_refuses_numbers_beyond_reason(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run_cli(capsys, "run", "--tokens", "5", "--device", "cpu", "-t", 100_000)
    assert outcome.code == 2
    assert "threads: expected an integer in 1 .. 4096, got 100000" in outcome.err
