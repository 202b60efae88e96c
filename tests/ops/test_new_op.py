"""A new op is one new file: the worked example of docs/adding-an-op.md, put into a copy of the ops
folder, is in the builder's stub, the docs, the suite and the benchmark without another edit."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pages import blocks
from paths import ROOT
from riverrun import _cpu

NAME = "leaky_relu"
PAGE = "docs/adding-an-op.md"
SMALL = [
    "x=1x256,slope=0.1",
    "x=7x33,slope=0.1",
    "x=2x3x65,slope=0.1",
    "gap,n=3,d=40",
    "edge",
    "empty,n=0,d=64",
]
IDS = [f"{NAME}[{case}]" for case in SMALL]
PERF = f"{NAME}[x=512x1024,slope=0.1]"
EXPANSION = re.compile(r"^    def expand.*?\n\n", re.M | re.S)
IMPORTS = re.compile(r"^from \.\.graph\.(?:builder|node) import .*\n", re.M)


def source() -> str:
    """The op of the page."""
    return blocks(PAGE, "python")[0]


@dataclass(frozen=True)
class Checkout:
    """A checkout whose package is links, but for an ops folder of its own."""

    top: Path

    def run(self, *command: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run Python with this checkout's package, in its top folder or another."""
        inherited = {k: v for k, v in os.environ.items() if k != "RIVERRUN_DEBUG"}
        return subprocess.run(
            [sys.executable, *map(str, command)],
            cwd=cwd or self.top,
            env=inherited | {"PYTHONPATH": str(self.top / "package")},
            capture_output=True,
            text=True,
            timeout=300,
        )

    def test_ops(self, *options: str) -> dict[str, Any]:
        """What `riverrun test-ops --op NAME --json` prints."""
        command = ("-m", "riverrun.tools.main", "test-ops", "--op", NAME, "--json")
        done = self.run(*command, *options)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        return json.loads(done.stdout)

    def pytest(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run tests that the checkout has already."""
        return self.run("-m", "pytest", "-p", "no:cacheprovider", *arguments, cwd=ROOT)


def make_checkout(top: Path, op: str) -> Checkout:
    """A checkout with the source of one op more in its ops folder."""
    package = top / "package" / "riverrun"
    subprocess.run([ROOT / "tools" / "dev_tree.sh", package.parent], check=True)
    (package / Path(_cpu.__file__).name).symlink_to(_cpu.__file__)
    (package / "ops").unlink()
    (package / "ops").mkdir()
    for path in (ROOT / "ops").glob("*.py"):
        (package / "ops" / path.name).symlink_to(path)
    (package / "ops" / f"{NAME}.py").write_text(op)
    for generated in ("graph/opmethods.pyi", "docs/ops.md"):
        (top / generated).parent.mkdir()
        shutil.copy(ROOT / generated, top / generated)
    (top / "tests").symlink_to(ROOT / "tests")  # whose records pages are made of
    return Checkout(top)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return make_checkout(tmp_path_factory.mktemp("checkout"), source())


def added_lines(checkout: Checkout, file: str) -> list[str]:
    """The lines of a generated file that the one in the repository does not have."""
    before = set((ROOT / file).read_text().splitlines())
    return [line for line in (checkout.top / file).read_text().splitlines() if line not in before]


def test_one_command_puts_it_into_the_builder_stub(checkout: Checkout) -> None:
    module = ("-m", "riverrun.tools.gen_stub")
    assert checkout.run(*module, "--check").returncode == 1
    assert checkout.run(*module).returncode == 0
    assert checkout.run(*module, "--check").returncode == 0
    signature = "self, x: Value, *, slope: float, name: str = ..."
    assert added_lines(checkout, "graph/opmethods.pyi") == [
        f"    def {NAME}({signature}) -> Value: ..."
    ]


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="docs/ops.md is made on x86-64"
)
def test_one_command_puts_it_into_the_docs(checkout: Checkout) -> None:
    module = ("-m", "riverrun.tools.gen_docs")
    done = checkout.run(*module)
    assert done.returncode == 0, done.stderr
    page = added_lines(checkout, "docs/ops.md")
    assert f"| [{NAME}](#{NAME}) | y | expanded | {len(IDS)} + 1 | {len(IDS) + 1} |" in page
    assert f"y = g.{NAME}(x, *, slope: float)" in page
    assert "y = x for x > 0, else slope * x" in page
    assert f"- Defined in `ops/{NAME}.py`." in page


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_its_cases_run(checkout: Checkout, backend: str) -> None:
    found = checkout.test_ops("--backend", backend)
    assert [row["id"] for row in found["cases"]] == IDS
    assert found["summary"] == {"passed": len(IDS), "failed": 0, "refused": 0, "ops": 1}


def test_its_rows_are_checked(checkout: Checkout, all_processors: None) -> None:
    found = checkout.test_ops("--rows")
    assert found["summary"] == {"passed": len(IDS) - 1, "failed": 0, "refused": 1, "ops": 1}
    (empty,) = (row for row in found["cases"] if row["status"] == "refused")
    assert (empty["id"], empty["why"]) == (f"{NAME}[empty,n=0,d=64]", "no rows")


def test_its_support_is_counted(checkout: Checkout) -> None:
    found = checkout.test_ops("--support")["support"]
    count = len(IDS) + 1
    assert found == {NAME: {"cases": count, "cpu": count, "reference": count}}


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_it_is_in_the_benchmark(checkout: Checkout, backend: str) -> None:
    (row,) = checkout.test_ops("--backend", backend, "--perf")["cases"]
    assert (row["id"], row["status"]) == (PERF, "passed") and row["us"] > 0 and row["gb_s"] > 0


def test_it_is_in_the_suite(checkout: Checkout) -> None:
    done = checkout.pytest("--collect-only", "tests/ops/test_consistency.py", "-k", NAME)
    test = "tests/ops/test_consistency.py::test_cpu_agrees_with_the_reference"
    collected = [line for line in done.stdout.splitlines() if "::" in line]
    assert collected == [f"{test}[{case}]" for case in IDS], done.stdout
    files = (f"tests/ops/test_{name}.py" for name in ("consistency", "every_op", "rows"))
    done = checkout.pytest(*files, "-k", f"{NAME} and not instruction_sets")
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout


def test_without_expansion_and_kernel_it_is_refused(tmp_path: Path) -> None:
    text, cut = EXPANSION.subn("", source())
    checkout = make_checkout(tmp_path, IMPORTS.sub("", text))
    found = checkout.test_ops("--backend", "cpu")
    assert cut == 1 and [row["id"] for row in found["cases"]] == IDS
    assert {(row["status"], row["why"]) for row in found["cases"]} == {
        ("refused", "no kernel of this op")
    }
    (row,) = checkout.test_ops("--backend", "cpu", "--perf")["cases"]
    assert (row["id"], row["status"]) == (PERF, "refused") and "us" not in row
