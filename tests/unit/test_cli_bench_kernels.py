"""`riverrun bench kernels`: what is asked of which level, and what times come to. Nothing here says
how long anything takes."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from cli import run_cli
from riverrun import _cpu
from riverrun.backends import open_backend
from riverrun.backends.cpu import instruction_sets
from riverrun.bench import kernel_timing, kernels, levels
from riverrun.bench.kernel_timing import Asked, Core, Products, Timed, memory_rows, product, weight
from riverrun.bench.kernels import asked_products, figures
from riverrun.graph import Graph
from riverrun.graph.dtype import dtype
from riverrun.ops.mul_mat import WEIGHT_TYPES

TIMED = Timed(1e-8, 40.0, 288.0, 4e9, "vpdpbusd", 256e9, 57.6e9)
ROW = (
    "op type columns place isa ns cycles instructions gmac_s gb_s percent_of_peak percent_of_read "
    "clock_ghz peak_instruction peak_gmac_s read_gb_s"
)


class Fake:
    """A level's process, which has no kernel of its own for f32 above avx2."""

    def __init__(self, level: str, calls: list[tuple[str, Any]]) -> None:
        self.level, self.calls = level, calls

    def __enter__(self) -> Fake:
        return self

    def __exit__(self, *_: object) -> None:
        self.calls.append((self.level, None))

    def ask(self, request: Any) -> dict[str, Any]:
        self.calls.append((self.level, request))
        return {} if (request["type"], self.level) == ("f32", "avx512") else asdict(TIMED)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    calls: list[tuple[str, Any]] = []
    monkeypatch.setattr(levels, "instruction_sets", lambda: ["base", "avx2", "avx512"])
    monkeypatch.setattr(kernels, "at_level", lambda level, module: Fake(level, calls))
    return calls


def test_figures_of_given_times() -> None:
    """A block of 16 rows x 32 values with 4 columns is 2048 products."""
    row = figures(Asked("mul_mat", "q4_k", 4, "memory"), TIMED)
    wanted = {
        **{"ns": 10, "cycles": 40, "instructions": 40, "gmac_s": 204.8, "gb_s": 28.8},
        **{"percent_of_peak": 80, "percent_of_read": 50, "clock_ghz": 4, "peak_gmac_s": 256},
        **{"peak_instruction": "vpdpbusd", "read_gb_s": 57.6},
    }
    assert row == {name: pytest.approx(value) for name, value in wanted.items()}


def test_what_is_not_known_is_none() -> None:
    row = figures(Asked("mul_mat", "q4_k", 1, "cache"), Timed(1e-8, None, 1, 4e9, "", 0, None))
    unknown = {name for name, value in row.items() if value is None}
    names = "instructions percent_of_peak percent_of_read peak_instruction peak_gmac_s read_gb_s"
    assert unknown == set(names.split())


def test_levels_take_turns(
    capsys: pytest.CaptureFixture[str], fakes: list[tuple[str, Any]]
) -> None:
    options = ("--isa", "avx2,avx512", "--type", "f32,q4_k", "--columns", "1,8", "--json")
    outcome = run_cli(capsys, "bench", "kernels", *options)
    assert (outcome.code, outcome.err) == (0, "")
    asked = [
        {"op": "mul_mat", "type": of, "columns": n, "place": place}
        for of in ("f32", "q4_k")
        for n in (1, 8)
        for place in ("cache", "memory")
    ]
    assert fakes[:-2] == [(level, each) for each in asked for level in ("avx2", "avx512")]
    assert {(level, ended) for level, ended in fakes[-2:]} == {("avx2", None), ("avx512", None)}
    report = json.loads(outcome.out)
    assert (report["device"], report["threads"], report["isa"]) == ("cpu", 1, ["avx2", "avx512"])
    assert all(list(row) == ROW.split() for row in report["results"])
    found = [(row["type"], row["isa"]) for row in report["results"]]
    assert found == [("f32", "avx2")] * 4 + [("q4_k", "avx2"), ("q4_k", "avx512")] * 4


def test_defaults_are_all_types_at_the_highest_level(
    capsys: pytest.CaptureFixture[str],
    fakes: list[tuple[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("riverrun.backends.cpu.instruction_sets", lambda: ["base", "avx2"])
    outcome = run_cli(capsys, "bench", "kernels", "--json")
    assert outcome.code == 0 and json.loads(outcome.out)["isa"] == ["avx2"]
    asked = [Asked(**request) for _, request in fakes if request]
    assert asked == asked_products(["mul_mat"], WEIGHT_TYPES, [1, 4, 8, 512])


@pytest.mark.parametrize("ops", ["mul_mat", "mul_mat,mul_mat_id"])
def test_table(capsys: pytest.CaptureFixture[str], fakes: list[tuple[str, Any]], ops: str) -> None:
    """Ops are named where there are several; what is not known is a dash."""
    options = ("--isa", "avx2", "--type", "q8_0", "--columns", "4", "--op", ops)
    outcome = run_cli(capsys, "bench", "kernels", *options)
    what, head, first, *_ = outcome.out.splitlines()
    assert "16 rows x 32 values" in what
    named = ["op"] if "," in ops else []
    columns = "type isa n from ns cycles instr. GMAC/s % peak % read"
    assert head.split() == named + columns.split()
    values = "q8_0 avx2 4 cache 10.0 40.0 40.0 205 80.0 50.0"
    assert first.split() == ["mul_mat"] * len(named) + values.split()


def test_what_cannot_be_measured_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], fakes: list[tuple[str, Any]]
) -> None:
    wrong = {
        ("--isa", "sse"): "expected levels of base, avx2, avx512, got 'sse'",
        ("--isa", "base,base"): "expected each level once",
        ("--op", "rope"): "expected ops of mul_mat, mul_mat_id, got 'rope'",
        ("--op", ""): "expected ops of mul_mat, mul_mat_id, got ''",
        ("--type", "q9"): "expected types of f32, f16, ",
        ("--type", "q8_0,q8_0"): "expected each type once",
        ("--columns", "0"): "expected integers in 1 .. ",
        ("--columns", "one"): "got 'one'",
    }
    for options, words in wrong.items():
        outcome = run_cli(capsys, "bench", "kernels", *options)
        assert outcome.is_short_error(2), outcome
        assert words in " ".join(outcome.err.split()) and options[0] in outcome.err
    assert not fakes
    outcome = run_cli(capsys, "bench", "kernels", "--isa", "avx512", "--type", "f32")
    assert outcome.is_short_error(2) and "kernels of its own for f32" in outcome.err


@pytest.mark.parametrize("of", ["q8_0", "q4_k", "f32"])
@pytest.mark.parametrize("op", ["mul_mat", "mul_mat_id"])
def test_products_of_this_level(op: str, of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_timing, "CACHE_SAMPLES", 1)
    monkeypatch.setattr(kernel_timing, "SAMPLE_S", 1e-5)
    products = Products(1 << 16)
    assert products.level(Asked(op, of, 1, "cache")) in instruction_sets()
    cached, read = (products.time(Asked(op, of, 1, place)) for place in ("cache", "memory"))
    assert cached.read is None and read.read is not None and read.seconds > 0
    least = dtype(of).nbytes * 512 / dtype(of).block
    assert least <= cached.nbytes <= 1.2 * least and cached.clock > 1e8


def test_the_graph_of_a_product_is_right() -> None:
    backend, rng = open_backend("cpu"), np.random.default_rng(0)
    x = rng.uniform(-1, 1, (4, 512)).astype(np.float32)
    wanted = x @ weight("q8_0", 48, 512).decoded().T
    for op in ("mul_mat", "mul_mat_id"):
        plan = backend.compile(product(Asked(op, "q8_0", 4, "cache"), 48, 512))
        bound = plan.bind(backend.load_weights(plan.graph.data), backend.pools(plan.states))
        bound.inputs["x"][...] = x
        bound.run()
        np.testing.assert_allclose(bound.outputs["y"].reshape(4, 48), wanted, atol=0.5)


def test_runs_from_memory_hold_so_many_bytes_or_products() -> None:
    rows = memory_rows(Asked("mul_mat", "q8_0", 1, "memory"), 1 << 27)
    assert rows % 16 == 0 and 0 <= (1 << 27) - rows * 4096 // 32 * 34 < 16 * 4096 // 32 * 34
    assert memory_rows(Asked("mul_mat", "q8_0", 512, "memory"), 1 << 27) == 4096
    assert memory_rows(Asked("mul_mat", "q8_0", 1, "memory"), 1) == 16


def test_weights_repeat_the_same_rows() -> None:
    raw = weight("q4_k", 64, 512).raw.reshape(64, -1)
    assert (raw[:16] == raw[48:]).all() and not (raw[0] == raw[1]).all()


def test_repeated_runs_are_counted_by_the_system_or_not_at_all() -> None:
    backend, g = open_backend("cpu", 1), Graph("sum")
    g.output("y", g.relu(g.input("x", (64,))))
    plan = backend.compile(g)
    bound = plan.bind(backend.load_weights({}), backend.pools(plan.states))
    seconds, instructions = bound.repeat(5)
    assert seconds > 0 and (instructions is None or instructions > 0)


@pytest.mark.parametrize("wide", [True, False])
def test_peaks_name_their_instruction(wide: bool) -> None:
    name, rate = _cpu.dot_peak(wide)
    assert (rate > 1e7) == (name != "")


@pytest.mark.parametrize("of", ["f16", "q8_0", "q4_k"])
def test_a_core_keeps_its_best(of: str) -> None:
    class Given:
        def __init__(self) -> None:
            self.clocks, self.peaks = iter((3e9, 4e9, 2e9)), iter((6e9, 9e9, 5e9))

        def clock_rate(self) -> float:
            return next(self.clocks)

        def dot_peak(self, wide: bool) -> tuple[str, float]:
            return ("wide" if wide else "narrow"), next(self.peaks)

        def fma_rate(self) -> float:
            return 2 * next(self.peaks)

    core = Core(Given(), of)  # type: ignore[arg-type]
    for _ in range(3):
        core.sample()
    named = {"f16": "multiply-add", "q8_0": "wide", "q4_k": "narrow"}[of]
    assert (core.clock, core.peak, core.instruction) == (4e9, 9e9, named)
