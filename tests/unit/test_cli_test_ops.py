"""`riverrun test-ops`: what it prints, its exit codes, and that wrong backends do not pass."""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli import run_cli
from paths import DEMO
from riverrun import backends
from riverrun.backends.base import Backend, BoundPlan, Plan, Pools, Support, allocating
from riverrun.backends.harness import run_case
from riverrun.backends.reference import ReferenceBackend
from riverrun.backends.row_exact import check_rows
from riverrun.bench.measure import copy_bandwidth
from riverrun.bench.model_cases import BEFORE, CONTEXT, model_cases, step_inputs
from riverrun.bench.op_cases import find_cases, small_cases
from riverrun.bench.op_support import losses
from riverrun.graph import OPS, Graph, Node
from riverrun.graph.errors import RequestError
from riverrun.models.step import PAGE

Harm = Callable[[BoundPlan], None]
CASE = "rms_norm[x=4x64,w=64,eps=1e-06]"


class WrongBound(BoundPlan):
    """Runs a right plan, then does harm."""

    def __init__(self, right: BoundPlan, harm: Harm) -> None:
        self.right, self.harm = right, harm
        self.inputs = right.inputs

    @property
    def outputs(self) -> dict[str, Any]:  # type: ignore[override]
        return self.right.outputs

    def run(self, rows: int | None = None) -> None:
        self.right.run(rows)
        self.harm(self.right)


class WrongPlan(Plan):
    """A right plan whose bound plans do harm."""

    def __init__(self, right: Plan, harm: Harm) -> None:
        super().__init__(right.graph, right.kind)
        self.right, self.harm, self.memory = right, harm, right.memory

    def bind(self, weights: Any, pools: Pools) -> WrongBound:
        return WrongBound(self.right.bind(weights, pools), self.harm)

    def own_weights(self) -> Any:
        return self.right.own_weights()


class WrongBackend(Backend):
    """The CPU backend, or another one, with harm done after each run."""

    name, threads = "cpu", 1

    def __init__(self, harm: Harm, right: Backend | None = None) -> None:
        self.right, self.harm = right or backends.open_backend("cpu", 1), harm

    def supports(self, node: Node) -> Support:
        return self.right.supports(node)

    def compile(self, graph: Graph, kind: str = "step") -> WrongPlan:
        return WrongPlan(self.right.compile(graph, kind), self.harm)

    def load_weights(self, weights: Mapping[str, Any], progress: Any = None) -> Any:
        return self.right.load_weights(weights, progress)


def perturb(bound: BoundPlan) -> None:
    """The last element of an output is wrong by a hundredth and a bit."""
    last = next(iter(bound.outputs.values())).reshape(-1)[-1:]
    last += (0.01 * last + 0.001).astype(last.dtype)


def poke(array: Any, at: int) -> None:
    """Write one byte at an offset from an array's start; `at` may be outside it."""
    here = array.ctypes.data + at
    ctypes.memset(here, ctypes.c_uint8.from_address(here).value ^ 0x55, 1)


def past_input(bound: BoundPlan) -> None:
    poke(bound.inputs["x"], bound.inputs["x"].nbytes)


def before_input(bound: BoundPlan) -> None:
    poke(bound.inputs["x"], -1)


def into_input(bound: BoundPlan) -> None:
    poke(bound.inputs["x"], 3)


def past_output(bound: BoundPlan) -> None:
    poke(bound.outputs["y"], bound.outputs["y"].nbytes)


def past_workspace(bound: Any) -> None:
    poke(bound.workspace, bound.workspace.nbytes)


def raise_error(bound: BoundPlan) -> None:
    raise ZeroDivisionError("so it goes")


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (perturb, r"y: NMSE .* is over 1e-11"),
        (past_input, "wrote byte 1 past the end of input 'x', which has 1024 bytes"),
        (before_input, "wrote byte 1 before input 'x'"),
        (into_input, "changed its input 'x'"),
        (past_output, "wrote byte 1 past the end of the arena, which has 1024 bytes"),
        (past_workspace, "wrote byte 1 past the end of the workspace"),
        (raise_error, "ZeroDivisionError: so it goes"),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_each_harm_is_found(harm: Harm, why: str) -> None:
    (case,) = find_cases([CASE], small_cases(["rms_norm"]))
    assert run_case(backends.open_backend("cpu", 1), case).status == "passed"
    result = run_case(WrongBackend(harm), case)
    assert result.status == "failed"
    assert re.search(why, result.why), result.why


def test_a_write_into_the_slack_after_a_small_output_is_found() -> None:
    (case,) = find_cases(["rms_norm[x=1x1,w=1,eps=1e-06]"], small_cases(["rms_norm"]))
    result = run_case(WrongBackend(past_output), case)
    assert result.status == "failed" and "wrote byte 4 of the arena" in result.why


def test_a_changed_constant_is_found() -> None:
    case = small_cases(["rms_norm"])[0]

    class Weights(ReferenceBackend):
        def load_weights(self, weights: Mapping[str, Any], progress: Any = None) -> Any:
            self.raw = weights["w"].raw
            return super().load_weights(weights, progress)

    right = Weights()
    result = run_case(WrongBackend(lambda bound: poke(right.raw, 0), right), case)
    assert result.status == "failed" and "changed its constant 'w'" in result.why


def test_memory_is_only_guarded_within() -> None:
    taken: list[int] = []

    def allocate(size: int, align: int) -> Any:
        taken.append(size)
        return np.zeros(size, np.uint8)

    with allocating(allocate):
        backends.base.aligned(3)
    backends.base.aligned(5)
    assert taken == [3]


class Crowded(WrongBackend):
    """The last bits of rows come out otherwise when there are eight of them or more, or eight that
    enter a state."""

    def __init__(self) -> None:
        super().__init__(self.crowd)

    @staticmethod
    def crowd(bound: BoundPlan) -> None:
        rows = next(iter(bound.outputs.values()))
        if max(len(rows), len(bound.inputs.get("idx", ()))) >= 8:
            rows.reshape(-1).view(np.uint8)[:: rows.itemsize] += 1


WITH_ROWS = [name for name, op in sorted(OPS.items()) if not (op.view or op.no_rows)]


@pytest.mark.parametrize("op", WITH_ROWS)
def test_rows_that_depend_on_others_are_found(op: str) -> None:
    right = backends.open_backend("cpu", 1)
    found = 0
    for case in small_cases([op])[:4]:
        sizes = (1, 2, 9, 33)
        if check_rows([right], case, sizes).status == "passed":
            result = check_rows([Crowded()], case, sizes)
            assert result.status == "failed", case.id
            assert "differ" in result.why
            found += 1
    assert found


def test_rows_of_what_has_none_are_refused() -> None:
    backend = backends.open_backend("cpu", 1)
    (empty,) = find_cases(["rms_norm[empty,n=0,d=64]"], small_cases(["rms_norm"]))
    assert check_rows([backend], empty).why == "no rows"


def use(monkeypatch: pytest.MonkeyPatch, backend: Backend) -> None:
    monkeypatch.setattr(backends, "open_backend", lambda name, threads=None: backend)


def test_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run_cli(capsys, "test-ops", "--op", "rms_norm", "--op", "silu", "-t", 1)
    count = len(small_cases(["rms_norm", "silu"]))
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("cpu, ")
    assert outcome.out.endswith(f"threads 1: {count} passed, 0 failed, 0 refused, 2 ops\n")


@pytest.mark.parametrize("harm", [perturb, past_output], ids=lambda h: h.__name__)
def test_a_wrong_backend_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, harm: Harm
) -> None:
    use(monkeypatch, WrongBackend(harm))
    outcome = run_cli(capsys, "test-ops", "--op", "rms_norm")
    *lines, summary, again = outcome.out.splitlines()
    assert (outcome.code, outcome.err) == (1, "")
    assert lines and all(line.startswith("failed rms_norm[") for line in lines)
    assert f"{len(lines)} failed" in summary
    first = lines[0].removeprefix("failed ").split("]:")[0] + "]"
    assert again == f"one of them again: riverrun test-ops --case '{first}'"
    one = run_cli(capsys, "test-ops", "--case", first)
    assert one.code == 1 and "0 passed, 1 failed, 0 refused, 1 ops" in one.out


def test_json_object(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, WrongBackend(perturb))
    outcome = run_cli(capsys, "test-ops", "--op", "argmax", "--op", "rms_norm", "--json")
    found = json.loads(outcome.out)
    assert outcome.code == 1 and outcome.out.count("\n") == 1
    assert list(found) == ["summary", "cases"]
    statuses = [row["status"] for row in found["cases"]]
    counts = {s: statuses.count(s) for s in ("passed", "failed", "refused")}
    assert found["summary"] == {**counts, "ops": 2}
    assert [row["id"] for row in found["cases"]] == [
        case.id for case in small_cases(["argmax", "rms_norm"])
    ]
    for row in found["cases"]:
        assert list(row) == ["id", "status", "why", "nmse"]
        assert bool(row["why"]) == (row["status"] != "passed")
        assert row["nmse"] is None or row["nmse"] >= 0


class Picky(ReferenceBackend):
    """Takes no rows of 64."""

    def supports(self, node: Node) -> Support:
        narrow = 64 not in node.specs[0].shape
        return Support(narrow, "" if narrow else "64 is unlucky")


def test_refusals_are_told_by_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, Picky())
    outcome = run_cli(capsys, "test-ops", "--op", "rms_norm")
    lines = [line for line in outcome.out.splitlines() if line.startswith("refused")]
    assert outcome.code == 0
    assert len(lines) == 1 and lines[0].startswith("refused rms_norm: 64 is unlucky (")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--op", "rms_nrm"), "no op is called 'rms_nrm'; near it: rms_norm"),
        (("--case", "silu[x=1x255]"), "near it: silu["),
        (("--backend", "cpux"), "no backend is called 'cpux'; near it: cpu"),
        (("--perf", "--rows"), "one of --perf and --rows at a time"),
        (("--write", "x.json"), "goes with --support"),
        (("--rows", "--from-model", "x.gguf"), "goes with --perf or none of the others"),
        (("-t", "0"), "greater than or equal to 1"),
    ],
)
def test_usage_errors(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    outcome = run_cli(capsys, "test-ops", *arguments)
    assert outcome.is_short_error(2) and said in outcome.err, outcome


def test_a_card_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run_cli(capsys, "test-ops", "--backend", "cuda:99", "--op", "abs")
    assert outcome.is_short_error(1) and "cuda" in outcome.err


def test_a_case_is_reproduced_by_its_id(capsys: pytest.CaptureFixture[str]) -> None:
    rows = []
    for arguments in (("--case", CASE), ("--op", "rms_norm")):
        outcome = run_cli(capsys, "test-ops", *arguments, "--json")
        rows.append([r for r in json.loads(outcome.out)["cases"] if r["id"] == CASE])
    assert rows[0] == rows[1] and len(rows[0]) == 1 and rows[0][0]["nmse"] > 0


def test_support_is_counted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    outcome = run_cli(
        capsys, "test-ops", "--support", "--op", "add", "--json", "--write", tmp_path / "s.json"
    )
    found = json.loads(outcome.out)
    assert json.loads((tmp_path / "s.json").read_text()) == found["support"]
    row = found["support"]["add"]
    assert row["cases"] == row["cpu"] == row["reference"] > 10
    assert found["kernels"]["cpu"]["add"][0] == "base"
    plain = run_cli(capsys, "test-ops", "--support", "--op", "add").out.splitlines()
    assert plain[0].split() == ["op", "cases", "cpu", "reference", "kernels"]
    assert plain[1].split()[:4] == ["add", *(str(row[k]) for k in ("cases", "cpu", "reference"))]


def test_losses_of_support() -> None:
    before = {"add": {"cases": 3, "cpu": 3}, "old": {"cases": 1, "cpu": 0}}
    assert losses(before, before) == []
    assert losses(before, {"add": {"cases": 4, "cpu": 2}}) == ["add: cpu 3, now 2", "old is gone"]


def test_rows_of_an_op(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = ("--rows", "--case", CASE)
    outcome = run_cli(capsys, "test-ops", *chosen)
    assert outcome.code == 0 and "rms_norm: the same bits in 1 cases" in outcome.out
    use(monkeypatch, Crowded())
    outcome = run_cli(capsys, "test-ops", *chosen)
    assert outcome.code == 1 and "rms_norm: 1 of 1 cases differ" in outcome.out


def test_only_what_passed_is_timed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from riverrun.bench import op_timing

    monkeypatch.setattr(op_timing, "SAMPLE_S", 1e-4)
    monkeypatch.setattr(op_timing, "copy_bandwidth", lambda threads: 1e10)
    chosen = ("--perf", "--case", CASE, "--json")
    use(monkeypatch, WrongBackend(lambda bound: None))
    found = json.loads(run_cli(capsys, "test-ops", *chosen).out)
    (row,) = found["cases"]
    assert found["ceilings"] == {"copy_gb_s": 10.0, "fma_gflop_s": None}
    assert row["us"] > 0 and row["percent_of_copy"] == pytest.approx(10 * row["gb_s"])
    assert row["gb_s"] == pytest.approx((2 * 1024 + 256) / row["us"] / 1e3)
    use(monkeypatch, WrongBackend(perturb))
    outcome = run_cli(capsys, "test-ops", *chosen)
    (row,) = json.loads(outcome.out)["cases"]
    assert outcome.code == 1 and row["status"] == "failed" and "us" not in row


def test_ceilings_are_plausible_rates() -> None:
    cpu = backends.open_backend("cpu", 1)
    rate = cpu.fma_rate()
    assert rate is not None and 1e8 < rate < 1e13
    assert backends.open_backend("reference").fma_rate() is None
    assert 1e8 < copy_bandwidth(2, nbytes=8 << 20, repetitions=2) < 1e13


def test_cases_from_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    cases = model_cases(DEMO)
    assert len({case.id for case in cases}) == len(cases)
    ops = {case.op.name for case in cases}
    assert {"mul_mat", "attention", "gated_delta_net", "ssm_conv", "write_rows", "rope"} <= ops
    assert {case.kind for case in cases} == {"step", "prefill"}
    assert any(case.strides(i) for case in cases for i in range(len(case.inputs)))
    types = {d.dtype.name for c in cases if c.op.name == "mul_mat" for d in c.inputs if d}
    assert types == {"f32", "q8_0"}
    chosen = [name for op in sorted(ops - {"mul_mat"}) for name in ("--op", op)]
    outcome = run_cli(capsys, "test-ops", "--from-model", DEMO, *chosen, "--json")
    found = json.loads(outcome.out)
    assert outcome.code == 0 and found["summary"]["passed"] == len(found["cases"]) > 40
    one = next(c.id for c in cases if c.op.name == "attention")
    again = run_cli(capsys, "test-ops", "--from-model", DEMO, "--case", one, "--json")
    (row,) = json.loads(again.out)["cases"]
    assert row == next(r for r in found["cases"] if r["id"] == one)


@pytest.mark.parametrize("n", [1, 4, 64])
def test_step_inputs_are_valid(n: int) -> None:
    made = step_inputs(n, 1, 100)
    assert made["seq_offsets"].tolist() == [0, n] and made["out_rows"].tolist() == [n - 1]
    pages = made["block_table"][0]
    assert sorted(pages) == list(range(CONTEXT // PAGE))
    want = [pages[p // PAGE] * PAGE + p % PAGE for p in range(BEFORE, BEFORE + n)]
    assert made["kv_rows"].tolist() == want
    assert made["tokens"].min() >= 0 and made["tokens"].max() < 100


def test_unknown_names_list_similar_ones() -> None:
    with pytest.raises(RequestError, match=r"'gelu_er'; near it: gelu_erf, gelu"):
        small_cases(["gelu_er"])
