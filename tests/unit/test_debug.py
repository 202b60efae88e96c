"""RIVERRUN_DEBUG: what each level shows, and that results do not change with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import riverrun as rr
from paths import DEMO, ROOT
from refusing import Without
from riverrun import _cpu
from riverrun.backends import Plan, open_backend
from riverrun.backends.checksums import checksum
from riverrun.backends.cpu import CpuBackend
from riverrun.backends.debug import WatchedBackend, report, watched
from riverrun.graph import Graph, TensorSpec, dtype
from riverrun.graph.debug import level

TOY = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
TEXT = re.compile(r"^```text\n(.*?)^```$", re.M | re.S)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    """No level but the test's own, and no report of its plans when pytest ends."""
    monkeypatch.delenv("RIVERRUN_DEBUG", raising=False)
    yield
    report()


def chain() -> Graph:
    """A state written twice, a fused-looking tail, and two outputs."""
    g = Graph("chain")
    x, idx = g.input("x", (2, 8)), g.input("idx", (2,), "i32")
    s = g.write_rows(g.state("s", (4, 8)), x, idx, name="first")
    seen = g.rms_norm(g.get_rows(s, idx), eps=1e-6, name="norm")
    g.write_rows(s, seen, idx, name="second")
    values, where = g.top_k(seen, k=2, name="best")
    g.output("values", values)
    g.output("where", where)
    return g


INPUTS = {"x": np.arange(16.0).reshape(2, 8), "idx": [3, 0]}


def at(n: int, monkeypatch: pytest.MonkeyPatch, device: str = "cpu") -> Plan:
    monkeypatch.setenv("RIVERRUN_DEBUG", str(n))
    return rr.compile(chain(), device=device)


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


@pytest.mark.parametrize(
    ("text", "want"),
    [("", 0), ("0", 0), ("1", 1), (" 3 ", 3), ("4", 4), ("17", 4), ("yes", 0), ("-1", 0)],
)
def test_the_level_is_a_number(text: str, want: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIVERRUN_DEBUG", text)
    assert level() == want


def test_without_a_level_nothing_is_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    backend = open_backend("cpu", 1)
    assert isinstance(backend, CpuBackend) and watched(backend) is backend
    rr.compile(chain(), device=backend)(**INPUTS)
    report()
    assert shown(capsys) == []


@pytest.mark.parametrize("device", ["cpu", "reference", "cpu,reference"])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_results_stay_the_same(n: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    want = rr.compile(chain(), device=device)
    got = at(n, monkeypatch, device)
    for shift in (0, 1):
        inputs = {**INPUTS, "x": INPUTS["x"] + shift}
        a, b = want(**inputs), got(**inputs)
        assert list(a) == list(b) == ["values", "where"]
        assert all(np.array_equal(a[k], b[k]) for k in a)


def test_level_1_describes_devices_and_plans(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at(1, monkeypatch)(**INPUTS)
    device, plan, kernels = shown(capsys)
    assert device.startswith("riverrun: device cpu, threads ")
    assert "plan 'chain' step on cpu: 5 nodes, arena " in plan and "states 128 bytes" in plan
    assert re.search(r"write_rows/\w+ 2$", kernels) and re.search(r"rms_norm/\w+ 1,", kernels)


NAMED = """
from riverrun.backends import open_backend
from riverrun.graph import Graph
from riverrun.tools.graph_notes import place_of

g = Graph()
x, w = g.input("x", (4, 64)), g.input("w", (32, 64))
g.output("y", g.silu(g.mul_mat(g.rms_norm(x, eps=1e-6), w)))
backend = open_backend("cpu", 1)
backend.compile(g)
print(*sorted({place_of(backend, node) for node in g.nodes if not node.is_leaf}))
"""


@pytest.mark.parametrize("isa", _cpu.isas())
def test_kernels_are_those_of_the_instruction_sets_in_use(isa: str) -> None:
    """Where not every kernel of the build can be used, those that are have other numbers."""
    env = {**os.environ, "RIVERRUN_DEBUG": "1", "RIVERRUN_ISA": isa}
    env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run([sys.executable, "-c", NAMED], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (named,) = (x for x in done.stderr.splitlines() if x.startswith("riverrun:   "))
    chosen = dict(re.findall(r"(\w+)/(\w+) 1", named))
    allowed = _cpu.isas()[: _cpu.isas().index(isa) + 1]
    known = {(k["op"], k["isa"]) for k in _cpu.kernels() if k["isa"] in allowed}
    assert chosen.keys() == {"mul_mat", "rms_norm", "silu"} and chosen.items() <= known
    assert set(re.findall(r"cpu (\w+)", done.stdout)) == set(chosen.values())


def test_a_backend_that_is_watched_is_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIVERRUN_DEBUG", "1")
    backend = open_backend("cpu", 1)
    assert isinstance(backend, WatchedBackend) and watched(backend) is backend
    assert (backend.name, backend.threads) == ("cpu", 1)
    assert backend.supports(chain().nodes[-1]).ok
    assert backend.capabilities == open_backend("cpu", 1).capabilities
    assert backend.fma_rate() and backend.copy_rate() is None


def test_plans_that_are_timed_have_what_the_plan_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIVERRUN_DEBUG", "2")
    plan: Any = rr.compile(chain(), device="cpu,reference")
    assert plan.placement_lines()[0] == "segment 0 on cpu:"
    bound = plan.bind(plan.own_weights(), plan.pools())
    bound.start()
    bound.finish()
    assert bound.profile() and plan.times.runs == 2


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_level_2_reports_times(
    device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = at(2, monkeypatch, device)
    for _ in range(3):
        plan(**INPUTS)
    shown(capsys)
    report()
    lines = shown(capsys)
    assert re.match(
        rf"riverrun: times of 'chain' step on {device}: 3 runs, [\d.]+ ms/run$", lines[0]
    )
    assert lines[1].split()[1:] == ["ms/run", "share", "GB/s", "GFLOP/s"]
    rows = [line.split()[1:] for line in lines[2:]]
    by_op = {row[0]: row[2:] for row in rows[:4]}
    assert set(by_op) == {"write_rows", "rms_norm", "get_rows", "top_k"}
    assert sum(float(row[1].rstrip("%")) for row in by_op.values()) == pytest.approx(100, abs=0.3)
    assert [float(r[0]) for r in by_op.values()] == sorted(
        (float(r[0]) for r in by_op.values()), reverse=True
    )
    assert {" ".join(r[:3]) for r in rows[4:]} >= {"3 write_rows first", "5 rms_norm norm"}
    report()
    assert shown(capsys) == []


def test_times_of_segments_are_joined(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RIVERRUN_DEBUG", "2")
    first = Without(CpuBackend(1), "rms_norm")
    rr.compile(chain(), device=[first, open_backend("reference")])(**INPUTS)
    report()
    text = "\n".join(shown(capsys))
    assert "nodes not timed" not in text and "rms_norm x1" in text and "write_rows x2" in text
    rr.compile(chain(), device="null")(**INPUTS)
    shown(capsys)
    report()
    assert shown(capsys) == ["riverrun: times of 'chain' step on null: 1 runs, nodes not timed"]


def test_level_3_shows_places_with_causes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RIVERRUN_DEBUG", "3")
    first = Without(CpuBackend(1), "rms_norm")
    rr.compile(chain(), device=[first, open_backend("reference")])
    lines = [line.removeprefix("riverrun: ") for line in shown(capsys)]
    assert any("3 segments, 2 copies of 128 bytes a run" in line for line in lines)
    start = next(i for i, line in enumerate(lines) if line.startswith("segment 0 on cpu:"))
    assert "  5 rms_norm norm: only backend" in lines[start:]
    assert "  3 write_rows first: state" in lines[start:]
    assert any(line.startswith("  copy.") and "from segment 1" in line for line in lines[start:])


def test_level_4_lines_differ_in_values_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {}
    for device in ("cpu", "cpu,reference", "reference"):
        plan = at(4, monkeypatch, device)
        plan(**INPUTS)
        plan(**INPUTS)
        found[device] = [line for line in shown(capsys) if not line.startswith("riverrun:")]
    assert found["cpu"] == found["cpu,reference"]
    for lines in (found["cpu"], found["reference"]):
        heads = [lines[0], lines[9]]
        assert heads == [f"# chain step run {n}: id op name shape rms crc" for n in (1, 2)]
        assert [line.rsplit(" ", 2)[0] for line in lines[1:9]] == [
            "0 input x f32[2,8]",
            "1 input idx i32[2]",
            "3 write_rows first f32[4,8]",
            "4 get_rows - f32[2,8]",
            "5 rms_norm norm f32[2,8]",
            "6 write_rows second f32[4,8]",
            "7.0 top_k best f32[2,2]",
            "7.1 top_k best i32[2,2]",
        ]
        assert [line.endswith(" - -") for line in lines[1:9]].index(True) == 2
        assert lines[5].split()[4] in ("1.000000e+00", "9.999999e-01")


def test_level_4_finds_a_wrong_node(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lines(device: str) -> list[str]:
        at(4, monkeypatch, device)(**INPUTS)
        return [line for line in shown(capsys) if not line.startswith("riverrun:")]

    right = lines("reference")
    norm = rr.ops.rms_norm.RmsNorm
    reference = norm.reference
    monkeypatch.setattr(norm, "reference", lambda self, x, w: reference(self, x, w) * 2)
    wrong = lines("reference")
    differing = [a for a, b in zip(right, wrong, strict=True) if a != b]
    assert differing[0].startswith("5 rms_norm norm ")


def test_checksums() -> None:
    ones = np.ones((2, 2), np.float32)
    crc = zlib.crc32(bytes.fromhex("0000803f") * 4)
    assert checksum(ones, TensorSpec((2, 2))) == f"1.000000e+00 {crc:08x}"
    assert checksum(ones * 3, TensorSpec((2, 2))).startswith("3.000000e+00 ")
    assert checksum(np.full(2, 0xBF80, np.uint16), TensorSpec((2,), dtype("bf16"))).startswith(
        "1.000000e+00 "
    )
    assert checksum(np.zeros((0, 4), np.float32), TensorSpec((0, 4))) == "0.000000e+00 00000000"
    assert checksum(np.array([np.nan], np.float32), TensorSpec((1,))).startswith("nan ")
    strided = np.arange(8, dtype=np.float32)[::2]
    assert checksum(strided, TensorSpec((4,))) == checksum(strided.copy(), TensorSpec((4,)))


def test_a_session_prints_a_block_for_each_pass(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    want = rr.load(DEMO, threads=1).session(n_ctx=16).prefill([5, 7, 11]).copy()
    monkeypatch.setenv("RIVERRUN_DEBUG", "4")
    session = rr.load(DEMO, threads=1).session(n_ctx=16)
    shown(capsys)
    got = session.prefill([5, 7, 11])
    np.testing.assert_array_equal(got, want)
    lines = [line for line in shown(capsys) if not line.startswith("riverrun:")]
    assert lines[0].startswith("# qwen35 n=3 b=1 prefill run 1:")
    assert lines[-1].split()[1:3] == ["mul_mat", "output"]
    assert all(len(line.split()) == 6 for line in lines[1:])
    session.decode(3)
    assert shown(capsys)[0].startswith("# qwen35 n=1 b=1 step run ")


def test_the_example_of_the_page(tmp_path: Path) -> None:
    page = (ROOT / "docs/debugging.md").read_text()
    backend = TOY.findall((ROOT / "docs/adding-a-backend.md").read_text())[0]
    (tmp_path / "toy.py").write_text(backend)
    (tmp_path / "wrong.py").write_text(TOY.findall(page)[0])
    right, diff, first = TEXT.findall(page)
    found = {}
    for device in ("reference", "toy"):
        command = [sys.executable, "wrong.py", device]
        paths = os.pathsep.join(p for p in sys.path if p)
        env = {**os.environ, "RIVERRUN_DEBUG": "4", "PYTHONPATH": paths}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr
        kept = [x for x in done.stderr.decode().splitlines() if not x.startswith("riverrun:")]
        found[device] = kept
    assert found["reference"] == right.splitlines()
    pairs = zip(found["reference"], found["toy"], strict=True)
    differing = [(a, b) for a, b in pairs if a != b]
    assert diff.splitlines() == [
        "4,5c4,5",
        *(f"< {a}" for a, _ in differing),
        "---",
        *(f"> {b}" for _, b in differing),
    ]
    assert first == " ".join(differing[0]) + "\n"
