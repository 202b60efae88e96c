"""How many processors this process may use, and so how many threads are worth running."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from ..graph.errors import BackendError

MAX_THREADS = 1024  # or the number of processors, where that is larger
_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_TOPOLOGY = Path("/sys/devices/system/cpu")


def available_processors() -> int:
    """Processors that affinity and the cgroup quota allow, at least 1."""
    return _within_quota(len(_allowed()))


def default_threads() -> int:
    """One thread for each physical core that affinity and the cgroup quota allow, at least 1."""
    return _within_quota(_cores(_allowed()))


def usable_threads(asked: int | None) -> int:
    """How many threads to run: the default for None, and at most one for each available processor,
    with a warning where more are asked for, since those would only wait for each other.

    Raises BackendError for what is no whole number from 1 to MAX_THREADS."""
    if asked is None:
        return default_threads()
    processors = available_processors()
    most = max(MAX_THREADS, processors)
    if isinstance(asked, bool) or not isinstance(asked, int) or not 1 <= asked <= most:
        raise BackendError(f"threads should be a whole number from 1 to {most}, got {asked!r}")
    if asked <= processors:
        return asked
    warnings.warn(
        f"threads: {asked} were asked for, and {processors} run, one for each processor that "
        "affinity and the cgroup quota allow",
        UserWarning,
        stacklevel=3,
    )
    return processors


def _allowed() -> set[int]:
    try:
        return os.sched_getaffinity(0)
    except AttributeError:
        return set(range(os.cpu_count() or 1))


def _cores(processors: Iterable[int], topology: Path = _TOPOLOGY) -> int:
    """Physical cores of some processors: those that share one count once."""
    return len({_siblings(topology / f"cpu{n}" / "topology", n) for n in processors})


def _siblings(folder: Path, processor: int) -> str:
    """The processors of a processor's core, as the system lists them."""
    try:
        return (folder / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(processor)


def _within_quota(processors: int) -> int:
    return max(1, min(processors, _cgroup_quota() or processors))


def _cgroup_quota(root: Path = _CONTROL_GROUPS, own: Path = _OWN_GROUPS) -> int | None:
    """Whole processors, at least 1, of the least CPU quota that this process's control groups and
    those above them set; None without one."""
    quotas = [quota for folder in _group_folders(root, own) for quota in _quotas(folder)]
    return max(1, int(min(quotas))) if quotas else None


def _group_folders(root: Path, own: Path) -> Iterator[Path]:
    """Folders of the process's groups, in the unified hierarchy and the legacy one for `cpu`."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    paths = {top: PurePosixPath() for top in (root, root / "cpu")}
    for line in lines:
        controllers, _, path = line.partition(":")[2].partition(":")
        if not controllers:
            paths[root] = PurePosixPath(path.lstrip("/"))
        elif "cpu" in controllers.split(","):
            paths[root / "cpu"] = PurePosixPath(path.lstrip("/"))
    for top, group in paths.items():
        yield from (top / part for part in (group, *group.parents))


def _quotas(folder: Path) -> Iterator[float]:
    """Processors that one group's files allow: cpu.max, or two files in the legacy hierarchy."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            quota, period = (int(n) for f in names for n in (folder / f).read_text().split())
        except (OSError, ValueError):
            continue
        if quota > 0 and period > 0:
            yield quota / period
