"""The emulator of CUDA (csrc/emulate) runs kernels as CUDA does, and shows what they do wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from paths import ROOT

EMULATOR = ROOT / "csrc" / "emulate"
ORDERS = ("ascending", "descending", "shuffled")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
WATCHDOG_S = 120

Check = Callable[..., subprocess.CompletedProcess[str]]


def build(to: Path, *flags: str) -> Path:
    """The self-test, compiled; skips where that needs what is not there."""
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if not compiler:
        pytest.skip("no C++ compiler")
    if flags:
        (to / "probe.cpp").write_text("int main() {}")
        probe = [compiler, *flags, str(to / "probe.cpp"), "-o", str(to / "probe")]
        if subprocess.run(probe, capture_output=True).returncode:
            pytest.skip("the C++ compiler has no sanitizers")
    sources = [ROOT / "tests" / "emulate" / "selftest.cpp", *sorted(EMULATOR.glob("*.cpp"))]
    command = [compiler, "-std=c++17", "-O1", "-DRR_EMULATE", f"-I{EMULATOR}", "-pthread", *flags]
    subprocess.run([*command, *map(str, sources), "-o", str(to / "selftest")], check=True)
    return to / "selftest"


def runner(program: Path) -> Check:
    def run(check: str, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
        env |= {f"RIVERRUN_EMULATE_{k.upper()}": v for k, v in environment.items()}
        return subprocess.run(
            [str(program), check], env=env, capture_output=True, text=True, timeout=WATCHDOG_S
        )

    return run


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> Check:
    return runner(build(tmp_path_factory.mktemp("emulate")))


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Check:
    return runner(build(tmp_path_factory.mktemp("sanitized"), *SANITIZERS))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "name", ["barriers", "missing_barrier", "threads", "shuffles", "products", "shared_memory"]
)
def test_threads_of_a_block(check: Check, name: str, order: str) -> None:
    done = check(name, order=order)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["numbers", "graphs"])
def test_by_itself(check: Check, name: str) -> None:
    done = check(name)
    assert done.returncode == 0, done.stdout + done.stderr


def test_memory_is_limited_and_checked(check: Check) -> None:
    done = check("memory", memory=str(1 << 20), devices="2")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("order", ORDERS)
def test_deadlocks_are_errors_not_hangs(check: Check, order: str) -> None:
    done = check("deadlocks", order=order)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("deadlock: ") == 3
    assert "a mask without itself" in done.stderr


@pytest.mark.parametrize("name", ["barriers", "shuffles", "products", "deadlocks", "graphs"])
def test_clean_under_sanitizers(sanitized: Check, name: str) -> None:
    done = sanitized(name)
    assert done.returncode == 0, done.stdout + done.stderr


def test_sanitizers_see_what_kernels_do_wrong(sanitized: Check) -> None:
    overrun = sanitized("overrun")
    assert overrun.returncode != 0
    assert "heap-buffer-overflow" in overrun.stderr and "write_shared" in overrun.stderr
    vector = sanitized("misaligned_vector")
    assert vector.returncode != 0 and "misaligned address" in vector.stderr
