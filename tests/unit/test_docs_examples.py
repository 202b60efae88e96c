"""The examples of docs/ do what the text around them says."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import riverrun as rr
import riverrun.ops
from pages import blocks
from paths import ROOT
from riverrun.backends import open_backend
from riverrun.backends.harness import run_case
from riverrun.graph import OPS
from riverrun.graph.case import op_cases
from riverrun.graph.errors import AttributeValueError, DTypeError

NAME = "leaky_relu"


@pytest.fixture
def example_op(tmp_path: Path) -> Iterator[str]:
    """The op file of adding-an-op.md, as if it stood in ops/."""
    assert NAME not in OPS
    module_name = f"{riverrun.ops.__name__}.{NAME}"
    path = tmp_path / f"{NAME}.py"
    path.write_text(blocks("docs/adding-an-op.md", "python")[0])
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
        yield NAME
    finally:
        OPS.pop(NAME, None)
        del sys.modules[module_name]


def test_the_op_of_the_page_runs(example_op: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, use = blocks("docs/adding-an-op.md", "python")
    scope: dict[str, object] = {}
    exec(use, scope)
    printed = np.array([float(n) for n in re.findall(r"-?\d+\.?\d*", capsys.readouterr().out)])
    assert np.allclose(printed, [1.0, -0.1, 0.5, -0.2, 0.0, 3.0])


def test_the_cases_of_the_page_pass(example_op: str) -> None:
    cases = op_cases(OPS[example_op])
    assert len(cases) == 7
    for backend in (open_backend("reference"), open_backend("cpu", 1)):
        results = [run_case(backend, c) for c in cases if "perf" not in c.tags]
        assert [r.status for r in results] == ["passed"] * 6


def test_the_op_of_the_page_refuses(example_op: str) -> None:
    g = rr.Graph()
    with pytest.raises(
        AttributeValueError, match="'slope' should be at least 0 and below 1, got 2"
    ):
        g.leaky_relu(g.input("x", (2,)), slope=2.0)
    with pytest.raises(DTypeError, match="leaky_relu: 'x' should be f32, got f16"):
        g.leaky_relu(g.input("h", (2,), "f16"), slope=0.5)


@pytest.mark.parametrize("flags", [[], ["-mavx2", "-mfma", "-mf16c"]], ids=["base", "avx2"])
def test_the_kernel_of_the_page_compiles(tmp_path: Path, flags: list[str]) -> None:
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    if flags and os.uname().machine != "x86_64":
        pytest.skip("flags of another processor")
    source = tmp_path / f"{NAME}.cpp"
    source.write_text(blocks("docs/adding-a-kernel.md", "cpp")[0])
    require_compiles(compiler, source, flags, ("include", "common", "cpu"))


@pytest.mark.parametrize("number", [1, 2], ids=["of_elements", "by_hand"])
def test_the_cuda_kernels_of_the_page_compile(tmp_path: Path, number: int) -> None:
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    source = tmp_path / "kernel.cu"
    source.write_text(blocks("docs/adding-a-kernel.md", "cpp")[number])
    flags = ["-x", "c++", "-DRR_EMULATE", "-Wno-unknown-pragmas"]
    require_compiles(compiler, source, flags, ("include", "common", "cuda", "emulate"))


def require_compiles(compiler: str, source: Path, flags: list[str], parts: tuple[str, ...]) -> None:
    includes = [f"-I{ROOT / 'csrc' / part}" for part in parts]
    command = [compiler, "-std=gnu++17", "-Wall", "-Wextra", "-Wno-psabi", "-Werror", *flags]
    command += [*includes, "-fsyntax-only", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_python_of_the_page_of_chats_runs(capsys: pytest.CaptureFixture[str]) -> None:
    scope: dict[str, object] = {}
    for block in blocks("docs/chat.md", "python"):
        exec(block, scope)
    assert isinstance(request := scope["request"], rr.Request)
    assert request.result and request.result.text in capsys.readouterr().out


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_python_of_the_page_runs(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    scope: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(block, scope)
    # The pieces of the first example, which the following ones print after.
    want = rr.load(rr.DEMO_MODEL).generate("def quicksort(arr):", 64, temperature=0).result.text
    assert want and capsys.readouterr().out.startswith(want)


def test_the_backend_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    scope: dict[str, object] = {}
    for block in blocks("docs/adding-a-backend.md", "python"):
        exec(block, scope)
    assert capsys.readouterr().out == blocks("docs/adding-a-backend.md", "text")[0]


PAGES = [
    *sorted(p.name for p in ROOT.glob("*.md")),
    *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")),
]


@pytest.mark.parametrize("page", PAGES)
def test_links_and_named_files_exist(page: str) -> None:
    path = ROOT / page
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S)
    links = [t for t in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text) if "://" not in t]
    assert [t for t in links if not (path.parent / t).exists()] == []


def test_the_drafter_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    from riverrun.speculative.drafter import DRAFTERS

    file, use = blocks("docs/adding-a-drafter.md", "python")
    try:
        exec(file, {"__name__": "runs"})
        exec(use, {})
    finally:
        DRAFTERS.pop("runs", None)
    assert capsys.readouterr().out == "True\n"


def test_the_session_of_the_speculation_page() -> None:
    scope: dict[str, object] = {}
    for block in blocks("docs/speculation.md", "python"):
        exec(block, scope)
    session, found = scope["session"], scope["found"]
    assert isinstance(session, rr.Session)
    assert session.length(0) == session.length(1) > 1
    assert session.tokens(0)[-1] == 10 == session.tokens(1)[-1]
    assert found.logits.shape[0] == 3  # type: ignore[attr-defined]
