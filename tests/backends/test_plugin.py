"""Outside backends over the C ABI: a toy one in C serves its ops, damaged ones are refused."""

from __future__ import annotations

import collections
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import riverrun as rr
from paths import ROOT
from riverrun.backends.harness import run_case
from riverrun.backends.plugin import VARIABLE, PluginBackend
from riverrun.graph import OPS
from riverrun.graph.case import op_cases
from riverrun.graph.errors import BackendError, Unsupported

pytest.importorskip("cffi", reason="outside backends need cffi")
COMPILER = shutil.which(os.environ.get("CC", "cc"))
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler to build the toy backend")


def build(folder: Path, *switches: str) -> Path:
    """The toy backend as a library, built against the public header as strict C99."""
    library = folder / "toy.so"
    source = ROOT / "tests" / "plugin" / "toy.c"
    flags = ["-std=c99", "-pedantic", "-Wall", "-Werror", "-O1", "-shared", "-fPIC"]
    include = f"-I{ROOT / 'csrc' / 'include'}"
    command = [str(COMPILER), *flags, include, *switches, str(source), "-o", str(library), "-lm"]
    subprocess.run(command, check=True)
    return library


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("toy"))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("op", ["add", "mul_mat", "rms_norm"])
def test_the_toy_passes_the_cases_that_it_claims(toy: Path, op: str, threads: int) -> None:
    backend = PluginBackend(toy, threads)
    cases = [c for c in op_cases(OPS[op]) if "perf" not in c.tags]
    results = [run_case(backend, c) for c in cases]
    assert not [r for r in results if r.status == "failed"]
    counts = collections.Counter(r.status for r in results)
    assert counts["passed"] >= 5
    assert all(r.why for r in results if r.status == "refused")


def test_it_is_a_device_by_name(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(toy))
    assert {"cpu", "reference", "toy"} <= {d.name for d in rr.devices()}
    g = rr.Graph()
    x = g.input("x", (3, 8))
    plan = rr.compile(g, g.rms_norm(g.add(x, x), eps=0.0), device="toy")
    got = plan(x=np.full((3, 8), 2.0))
    np.testing.assert_allclose(got, np.ones((3, 8)), rtol=1e-6)


def test_other_ops_are_refused_with_the_node(toy: Path) -> None:
    g = rr.Graph()
    y = g.silu(g.input("x", (3, 8)))
    with pytest.raises(Unsupported, match=r"silu \(node 1.*no kernel of this op"):
        rr.compile(g, y, device=PluginBackend(toy))


@pytest.mark.parametrize(
    "switch,message",
    [
        ("-DTOY_ABI=99", "should speak ABI version 1, it speaks 99"),
        ("-DTOY_SCORE=0", "score is 0"),
        ("-DTOY_SILENT", "exports no rr_plugin_get"),
        ("-DTOY_DAMAGED", "kernel 2 of 3 is incomplete"),
    ],
)
def test_what_cannot_serve_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switch: str, message: str
) -> None:
    library = build(tmp_path, switch)
    with pytest.raises(BackendError, match=message) as error:
        PluginBackend(library)
    assert str(library) in str(error.value)
    monkeypatch.setenv(VARIABLE, str(library))
    listed = {d.name: d.description for d in rr.devices()}
    assert listed[str(library)].startswith("refused: ")
    rr.compile(*_one_add(), device="cpu")


def test_files_that_are_no_library_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.so"
    text.write_text("not a library")
    for path in (text, tmp_path / "absent.so"):
        with pytest.raises(BackendError, match="cannot be loaded"):
            PluginBackend(path)


def test_a_name_is_taken_once(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = build(tmp_path)
    monkeypatch.setenv(VARIABLE, os.pathsep.join([str(toy), str(other)]))
    with pytest.raises(BackendError, match="'toy' is taken"):
        rr.compile(*_one_add(), device="toy")


def _one_add() -> tuple[rr.Graph, object]:
    g = rr.Graph()
    x = g.input("x", (2,))
    return g, g.add(x, x)


def test_it_runs_inside_a_mixed_graph(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(toy))
    rng = np.random.default_rng(0)
    w = rng.standard_normal((16, 8)).astype(np.float32)
    x = rng.standard_normal((3, 8)).astype(np.float32)
    results = []
    for device in ("toy,cpu", "cpu", "reference"):
        g = rr.Graph()
        v = g.input("x", (3, 8))
        h = g.silu(g.mul_mat(g.rms_norm(v, eps=1e-6), g.constant(w)))
        results.append(rr.compile(g, g.add(h, h), device=device)(x=x))
    np.testing.assert_allclose(results[0], results[2], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(results[1], results[2], rtol=1e-5, atol=1e-6)
