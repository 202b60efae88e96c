"""Outside backends over the C ABI: a toy one in C serves its ops, damaged ones are refused."""

from __future__ import annotations

import collections
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import riverrun as rr
from pages import blocks
from paths import ROOT
from riverrun.backends import plugin
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
        ("-DTOY_NOTHING", "rr_plugin_get gave nothing"),
        ("-DTOY_SIZE=8", r"struct_size of its rr_plugin should be \d+ or more, got 8; build it"),
        (
            "-DTOY_KERNEL_SIZE=16",
            r"kernel 0 of 3 has a struct_size of 16, it should be \d+ or more",
        ),
        ("-DTOY_NAME=NULL", "its name or score is missing"),
        ('-DTOY_NAME=""', r"its device name should be of a-z, .*, got ''"),
        ('-DTOY_NAME="a,b"', r"its device name should be of a-z, .*, got 'a,b'"),
        ('-DTOY_NAME="Toy"', r"its device name should be of a-z, .*, got 'Toy'"),
        ('-DTOY_NAME="cuda:1"', r"its device name should be of a-z, .*, got 'cuda:1'"),
        ('-DTOY_NAME="cuda"', "the device name 'cuda' is taken by riverrun's own"),
        ('-DTOY_NAME="null"', "the device name 'null' is taken by riverrun's own"),
        ('-DTOY_NAME="auto"', "the device name 'auto' is taken by riverrun's own"),
        (r'-DTOY_NAME="t\xff"', r"its name should be UTF-8, got b't\\xff'"),
        (r'-DTOY_DESCRIPTION="\xc3("', r"its description should be UTF-8, got b'\\xc3\('"),
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
    refused = rr.devices()[-1]
    assert refused.name == str(library) and not refused.usable
    assert refused.description.startswith("refused: ")
    rr.compile(*_one_add(), device="cpu")


def refusal(path: Path) -> str:
    with pytest.raises(BackendError) as error:
        PluginBackend(path)
    assert str(error.value).startswith(f"backend {path}: cannot be loaded: ")
    return str(error.value)


def test_files_that_are_no_library_are_refused(tmp_path: Path) -> None:
    text, empty, fifo = (tmp_path / name for name in ("text.so", "empty.so", "fifo.so"))
    text.write_text("not a library")
    empty.write_bytes(b"")
    os.mkfifo(fifo)
    for path in (text, empty, tmp_path / "absent.so"):
        refusal(path)
    # Opening a FIFO would wait for somebody to write.
    assert "a shared library is a regular file, this is a FIFO" in refusal(fifo)
    assert "a shared library is a regular file, this is a directory" in refusal(tmp_path)
    assert "a shared library is a regular file, this is a device" in refusal(Path(os.devnull))


@pytest.mark.parametrize("kept", [4, 63, 64, 100, 0.3, 0.6, 0.9])
def test_a_cut_library_is_refused(toy: Path, tmp_path: Path, kept: float) -> None:
    """What the program headers map beyond a file's end kills the process when it is read."""
    whole = toy.read_bytes()
    mapped = max(
        int.from_bytes(whole[at + 8 : at + 16], "little")
        + int.from_bytes(whole[at + 32 : at + 40], "little")
        for at in range(64, 64 + 56 * int.from_bytes(whole[56:58], "little"), 56)
        if whole[at : at + 4] == b"\x01\0\0\0"
    )
    cut = tmp_path / "cut.so"
    n = kept if kept > 1 else int(kept * mapped)
    cut.write_bytes(whole[: int(n)])
    assert re.search(rf"it is cut: it should have \d+ bytes or more, it has {n}$", refusal(cut))
    end = tmp_path / "end.so"
    end.write_bytes(whole[:mapped])
    assert PluginBackend(end).name == "toy"


def test_a_path_without_a_folder_is_one_in_this_folder(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(toy.parent)
    assert PluginBackend(toy.name).name == "toy"


@pytest.mark.parametrize("byte", [ord("x"), 0xFF])
def test_reasons_that_do_not_end_or_are_no_text(tmp_path: Path, byte: int) -> None:
    backend = PluginBackend(build(tmp_path, f"-DTOY_LONG_REASON={byte}"))
    g = rr.Graph()
    g.add(g.input("x", (2, 3)), g.input("y", (3,)))
    support = backend.supports(g.nodes[-1])
    text = chr(byte) if byte < 128 else chr(0xFFFD)
    assert not support.ok and support.why == f"c99: {text * 255}"


def test_a_failure_that_is_no_text(tmp_path: Path) -> None:
    backend = PluginBackend(build(tmp_path, r'-DTOY_FAILURE="bad \xff"'))
    plan = rr.compile(*_one_add(), device=backend)
    with pytest.raises(BackendError, match="add: bad \ufffd"):
        plan(x=[1, 2])


class Entry(NamedTuple):
    """An installed package's entry point."""

    name: str
    value: str
    found: Callable[[], Any]

    def load(self) -> Callable[[], Any]:
        return self.found


def test_packages_name_libraries(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> str:
        raise ImportError("no module 'gone'")

    named = [Entry("b", "good:path", lambda: toy), Entry("a", "bad:path", broken)]
    monkeypatch.setattr(plugin, "entry_points", lambda group: named)
    by_name = {d.name: d for d in rr.devices()}
    assert by_name["toy"].usable and not by_name["riverrun.backends:a"].usable
    assert by_name["riverrun.backends:a"].description == (
        "refused: backend a: bad:path gave no path: ImportError: no module 'gone'"
    )
    assert rr.compile(*_one_add(), device="toy")(x=[1, 2]).tolist() == [2, 4]


def test_a_library_that_cannot_serve_is_not_in_the_way(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = build(tmp_path, "-DTOY_SILENT")
    monkeypatch.setenv(VARIABLE, os.pathsep.join([str(bad), str(toy)]))
    assert rr.compile(*_one_add(), device="toy")(x=[1, 2]).tolist() == [2, 4]
    with pytest.raises(BackendError, match=r"'you' is not in .*, toy; refused: backend .*no rr_pl"):
        rr.compile(*_one_add(), device="you")


def test_it_is_watched_like_others(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RIVERRUN_DEBUG", "1")
    backend = PluginBackend(toy, 1)
    assert [(k["op"], k["isa"]) for k in backend.kernels] == [
        (op, "c99") for op in ("add", "mul_mat", "rms_norm")
    ]
    assert backend.capabilities.prompt_exact
    assert rr.compile(*_one_add(), device=backend)(x=[1, 2]).tolist() == [2, 4]
    assert "riverrun:   add/c99 1" in capsys.readouterr().err.splitlines()


def test_the_library_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = "docs/adding-a-backend-in-c.md"
    (tmp_path / "mine.c").write_text(blocks(page, "c")[0])
    command = next(line for line in (ROOT / page).read_text().splitlines() if line[:3] == "cc ")
    words = [w.replace("-Icsrc", f"-I{ROOT / 'csrc'}") for w in command.split()[1:]]
    flags = ["-pedantic", "-Wall", "-Werror"]
    subprocess.run([str(COMPILER), *flags, *words], cwd=tmp_path, check=True)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "mine.so"))
    device = {d.name: d for d in rr.devices()}["mine"]
    assert device.usable and device.description.startswith("adds f32 (")
    assert rr.compile(*_one_add(), device="mine")(x=[1, 2]).tolist() == [2, 4]
    cases = [c for c in op_cases(OPS["add"]) if "perf" not in c.tags]
    counts = collections.Counter(
        run_case(PluginBackend(tmp_path / "mine.so"), c).status for c in cases
    )
    assert counts["passed"] >= 5 and not counts["failed"]


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
