"""`riverrun bench` and the measuring behind it."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import riverrun
from cli import DEVICE, run_cli
from demo import draft_file
from paths import DEMO
from riverrun import _cpu
from riverrun.backends import open_backend
from riverrun.backends.base import aligned
from riverrun.backends.cpu import CpuBackend, instruction_sets
from riverrun.bench import levels, measure, peers, throughput
from riverrun.bench import report as report_module
from riverrun.bench.apart import Apart
from riverrun.bench.by_engine import FilledSequences, decode_context
from riverrun.bench.measure import Times, read_bandwidth, repeat
from riverrun.bench.report import run_report
from riverrun.bench.throughput import (
    Bench,
    TimedRunner,
    Workload,
    make_tests,
    session_context,
    weight_bytes,
)
from riverrun.engine import Session
from riverrun.engine.sequences import Sequences
from riverrun.graph import Graph
from riverrun.graph.errors import BackendError
from rollback_rig import tiny

SMALL = ("bench", DEMO, "--device", DEVICE, "-p", "1,3", "-n", 2, "-r", 2)


def test_times() -> None:
    times = Times((0.5, 0.25, 1.0))
    assert times.median == 0.5 and times.spread == 1.5
    assert times.rates(2) == {"t_s_median": 4, "t_s_min": 2, "t_s_max": 8, "spread": 1.5}


class Clock:
    """Stands in for the module `time`: goes on only where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def test_repeat_leaves_out_the_warm_up_and_what_comes_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    clock = Clock()
    monkeypatch.setattr(measure, "time", clock)

    def run() -> None:
        clock.now += 1.0 if calls.count("run") else 64.0
        calls.append("run")

    def before() -> None:
        clock.now += 8.0
        calls.append("before")

    times = repeat(run, 3, before)
    assert calls == ["before", "run"] * 4
    assert times.seconds == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("nbytes", [0, 1, 255, 256 * 64 * 3 + 100, 8 << 20])
def test_read_bandwidth_is_a_plausible_rate(nbytes: int) -> None:
    assert 0 <= read_bandwidth(2, nbytes, repetitions=2) < 1e13
    assert nbytes < 1 << 20 or read_bandwidth(2, nbytes, repetitions=2) > 1e7


@pytest.mark.usefixtures("all_processors")
@pytest.mark.parametrize("wanted", [1 << 20, 3 << 20, 5 << 20])
def test_what_is_read_is_as_large_as_the_weights(
    wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same threads, and not more than the most."""
    seen: list[tuple[int, int]] = []

    def rate(backend: CpuBackend, nbytes: int, repetitions: int) -> float:
        seen.append((backend.threads or 0, nbytes))
        return 1e9

    monkeypatch.setattr(CpuBackend, "read_rate", rate)
    monkeypatch.setattr(measure, "MOST_READ", 4 << 20)
    assert read_bandwidth(2, wanted) == 1e9
    model = riverrun.load(DEMO, "cpu", 1)
    report = run_report(model, make_tests([1], 0), 1)
    assert seen == [(2, min(wanted, 4 << 20)), (1, 4 << 20)]
    assert report["memory"]["weight_bytes_per_token"] > 4 << 20


def test_memory_to_read_starts_at_a_line() -> None:
    raw = aligned(256)
    with pytest.raises(ValueError, match="multiple of 64"):
        _cpu.read_rate(CpuBackend(1).pool, raw[1:], 1)


def test_kinds() -> None:
    tests = make_tests([1, 64, 65], 8)
    assert [test.kind for test in tests] == ["step", "step", "prefill", "step"]
    assert [test.context for test in tests] == [1, 64, 65, 8 + 16]
    assert [test.name for test in make_tests([4], 0)] == ["pass"]
    further = make_tests([1], 8, [256], ["f16", "q8_0"], [99])
    assert [test.label for test in further] == [
        *("pass 1", "prompt 99", "decode 8", "decode 8 q8_0"),
        *("decode 8 at 256", "decode 8 at 256 q8_0"),
    ]
    assert session_context(further) == 8 + 16 and further[1].kind == "prefill"
    assert max(test.context for test in further) > 256 + 8 + 16


def test_weight_bytes() -> None:
    model = riverrun.load(DEMO, DEVICE)
    tensors = model.source.file.tensors
    trunk = {k: v for k, v in tensors.items() if not k.startswith("blk.12.")}
    assert len(trunk) < len(tensors), "the demo has a draft block that plain decoding leaves alone"
    wanted = sum(tensor.data.nbytes for tensor in trunk.values())
    table = tensors["token_embd.weight"]
    row = table.data.nbytes // table.shape[0]
    # Its table is read as a whole by the head where they are tied, else one row of it.
    wanted += row - (table.data.nbytes if "output.weight" in tensors else 0)
    assert Bench(model, 4).weight_bytes() == wanted


@pytest.mark.parametrize("n", [1, 2, 5])
def test_weight_bytes_of_experts(n: int) -> None:
    """Those that n tokens may choose, of which there are no more than all."""
    g = Graph("experts")
    experts = g.constant(np.ones((6, 4, 8)), "experts")
    x, ids = g.input("x", (n, 8)), g.input("ids", (n, 2), "i32")
    g.output("y", g.mul_mat_id(x, experts, ids))
    plan = open_backend("cpu").compile(g)
    assert weight_bytes(plan) == 4 * 4 * 8 * min(6, 2 * n)


def test_timed_passes_give_what_a_session_gives() -> None:
    model = riverrun.load(DEMO, DEVICE)
    plain, timed = model.session(8), Sequences(model, model.plan_session(8), TimedRunner)
    for tokens in ([295, 4304, 508], [17]):
        wanted = plain.evaluate([(0, tokens)], want="all").logits
        began = time.perf_counter()
        found = timed.evaluate([(0, tokens)], want="all").logits
        whole = time.perf_counter() - began
        np.testing.assert_array_equal(found, wanted)
    assert isinstance(timed.runner, TimedRunner)
    assert 0 < timed.runner.single.seconds < whole


def test_overhead_is_outside_the_plan_and_without_the_warm_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(riverrun.load(DEMO, DEVICE), 20)
    decode, calls = bench.session.decode, []
    clock = Clock()
    monkeypatch.setattr(throughput, "time", clock)

    def slow(token: int, seq: int = 0) -> np.ndarray:
        calls.append(token)
        clock.now += 64.0 if len(calls) <= 3 else 0.25
        return decode(token, seq)

    bench.session.decode = slow  # type: ignore[method-assign]
    row = bench.measure(make_tests([], 3)[0], 1)
    assert len(calls) == 6
    assert row["decode_overhead_us"] == 250_000


@pytest.mark.parametrize("variant", ["llama", "qwen35", "gemma3"])
def test_sequences_are_filled_without_evaluating(variant: str) -> None:
    """The passes that follow stand behind what they are filled with."""
    model = tiny(variant)
    session = Session(model, model.plan_session(3000, cache_bytes=0), FilledSequences)
    sequences = session.sequences
    assert isinstance(sequences, FilledSequences)
    sequences.fill(0, 2000)
    assert session.length() == 2000 and session.memory.pending(0) == 0
    logits = session.decode(5)
    assert np.isfinite(logits).all() and session.length() == 2001
    assert (session.sequences.runner.step(1, 1, 1).positions == [2000]).all()


def test_decoding_at_a_depth_and_prompts_as_requests_have_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    depths: list[tuple[int, str]] = []
    fill = FilledSequences.fill

    def filling(self: FilledSequences, seq: int, n: int) -> None:
        depths.append((n, self.plan.options.cache_type_k))
        fill(self, seq, n)

    monkeypatch.setattr(FilledSequences, "fill", filling)
    options = ("-p", 1, "-n", 2, "-r", 1, "--depth", "40,80", "--cache-types", "f16,q8_0")
    outcome = run_cli(
        capsys, "bench", DEMO, "--device", "cpu", *options, "--prompts", "70", "--json"
    )
    assert (outcome.code, outcome.err) == (0, "")
    report = json.loads(outcome.out)
    rows = {row["label"]: row for row in report["results"]}
    assert report["n_ctx"] == 18 and list(rows) == [
        *("pass 1", "prompt 70", "decode 2", "decode 2 q8_0"),
        *(f"decode 2 at {n}{kind}" for n in (40, 80) for kind in ("", " q8_0")),
    ]
    assert [depth for depth in depths if depth[0]] == [
        (n, kind) for n in (40, 80) for kind in ("f16", "q8_0") for _ in range(2)
    ]
    assert all(row["t_s_median"] > 0 for row in rows.values())
    assert rows["decode 2 at 80 q8_0"]["depth"] == 80
    assert decode_context(2, 80) > 98


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run_cli(capsys, *SMALL, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    report = json.loads(outcome.out)
    assert " ".join(report) == (
        "model device threads isa on_host n_ctx repetitions peer peers results memory"
    )
    assert (report["model"], report["device"], report["n_ctx"]) == (DEMO.name, DEVICE, 18)
    rows = report["results"]
    assert [(row["test"], row["n"]) for row in rows] == [("pass", 1), ("pass", 3), ("decode", 2)]
    for row in rows:
        assert 0 < row["t_s_min"] <= row["t_s_median"] <= row["t_s_max"]
        tokens = 1 if row["test"] == "decode" else row["n"]
        assert row["ms_median"] * row["t_s_median"] == pytest.approx(1e3 * tokens)
    assert 0 < rows[-1]["decode_overhead_us"] < 1e3 * rows[-1]["ms_median"]
    memory = report["memory"]
    reached = memory["weight_bytes_per_token"] * rows[-1]["t_s_median"] / 1e9
    assert memory["decode_gb_s"] == pytest.approx(reached)
    share = 100 * reached / memory["read_gb_s"]
    assert memory["decode_percent_of_read"] == pytest.approx(share)


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run_cli(capsys, *SMALL)
    assert outcome.code == 0
    for words in (DEMO.name, "pass 3", "decode 2", "step", "GB/s", "outside the plan"):
        assert words in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 80


@pytest.mark.parametrize(
    "arguments",
    [
        ("-p", "0"),
        ("-p", "1,x"),
        ("-n", "-1"),
        ("-r", "0"),
        ("-t", "-1"),
        ("-c", "4", "-p", "8"),
        ("--depth", "0"),
        ("--prompts", "1,"),
        ("--cache-types", "f16,f99"),
    ],
    ids=" ".join,
)
def test_usage_errors(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(capsys, "bench", "no-such-model.gguf", *arguments).is_short_error(2)


def test_peer_that_is_not_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "PACKAGES", {"one": "no_such_package", "two": "nor_this"})
    for option in (("--peer",), ("--peers", "two")):
        outcome = run_cli(capsys, *SMALL, *option)
        assert outcome.is_short_error(1) and "pip install n" in outcome.err
        assert f"the peer {'one' if option == ('--peer',) else 'two'} is not" in outcome.err
    monkeypatch.setitem(peers.PACKAGES, "three", "json")
    assert peers.installed() == ("three",)
    peers.check_installed(())
    assert run_cli(capsys, *SMALL, "--peers", "three,one").is_short_error(1)


def test_peers_and_levels_that_there_are_none_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levels, "instruction_sets", lambda: ["base", "avx2"])
    wrong = {
        ("--isa", "sse"): "expected levels of base, avx2, got 'sse'",
        ("--isa", "base,avx512"): "expected levels of base, avx2, got 'avx512'",
        ("--isa", "base,base"): "expected each level once",
        ("--isa", ""): "expected levels of base, avx2, got ''",
        ("--isa", "base", "--device", "reference"): "levels are those of the device cpu",
        ("--peers", "gpt"): "expected peers of ik_llama.cpp, llama.cpp, got 'gpt'",
        ("--peers", "llama.cpp,llama.cpp"): "expected each peer once",
    }
    for options, words in wrong.items():
        outcome = run_cli(capsys, "bench", "no-such-model.gguf", *options)
        assert outcome.is_short_error(2), outcome
        assert words in " ".join(outcome.err.split()) and options[0] in outcome.err


class Fake:
    """What is measured apart, and takes so many milliseconds a token."""

    def __init__(self, name: str, ms: float, calls: list[tuple[str, str, int, int]]) -> None:
        self.name, self.ms, self.calls = name, ms, calls

    def __enter__(self) -> Fake:
        return self

    def __exit__(self, *_: object) -> None:
        self.calls.append((self.name, "end", 0, 0))

    def measure(self, test: Workload, repetitions: int) -> dict[str, float]:
        self.calls.append((self.name, test.name, test.n, repetitions))
        return {**Times((self.ms * test.n / 1e3,)).rates(test.n), "ms_median": self.ms}


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int, int]]:
    """Levels base and avx2, the second three times as fast; peers one, and two that fails."""
    calls: list[tuple[str, str, int, int]] = []
    speeds = {"base": 6.0, "avx2": 2.0, "one": 12.0}

    def fake(name: str, *_: object) -> Fake:
        if name not in speeds:
            raise BackendError(f"the peer {name} was ended by SIGILL")
        return Fake(name, speeds[name], calls)

    monkeypatch.setattr(levels, "instruction_sets", lambda: ["base", "avx2"])
    monkeypatch.setattr(report_module, "open_level", fake)
    monkeypatch.setattr(report_module, "open_peer", fake)
    monkeypatch.setattr(peers, "PACKAGES", {"one": "json", "two": "json"})
    return calls


def test_levels_take_turns(
    fakes: list[tuple[str, str, int, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = run_cli(
        capsys, *("bench", DEMO, "-p", "1,3", "-n", 2, "-r", 4, "--isa", "base,avx2", "--json")
    )
    assert (outcome.code, outcome.err) == (0, "")
    turns = [(test, n) for test, n in (("pass", 1), ("pass", 3), ("decode", 2))]
    wanted = [(level, test, n, 4) for test, n in turns for level in ("base", "avx2")]
    assert fakes[:-2] == wanted and {end[1] for end in fakes[-2:]} == {"end"}
    report = json.loads(outcome.out)
    assert (report["isa"], report["device"], report["peers"]) == (["base", "avx2"], "cpu", [])
    for row, (test, n) in zip(report["results"], turns, strict=True):
        assert (row["test"], row["n"], row["kind"]) == (test, n, "step")
        assert list(row["levels"]) == ["base", "avx2"]
        assert [round(one["ratio"], 9) for one in row["levels"].values()] == [1, 3]
        assert row["levels"]["avx2"]["ms_median"] == 2


def test_table_of_levels_and_peers(
    fakes: list[tuple[str, str, int, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    """A peer that does not run is left out and named, as long as another does; unless it was asked
    for by its name."""
    options = ("bench", DEMO, "-p", "3", "-n", 0, "--isa", "avx2,base")
    outcome = run_cli(capsys, *options, "--peer")
    assert outcome.code == 0 and "left out: the peer two was ended by SIGILL" in outcome.err
    head, last = outcome.out.splitlines()[-2:]
    assert head.split() == ["test", "kind", "avx2", "t/s", "base", "t/s", "one", "ratio"]
    assert last.split() == ["pass", "3", "step", "500.0", "166.7", "(0.33)", "83.3", "6.00"]
    for named in ("two", "one,two"):
        outcome = run_cli(capsys, *options, "--peers", named)
        assert outcome.is_short_error(1) and "the peer two was ended by SIGILL" in outcome.err


def test_levels_of_this_processor(capsys: pytest.CaptureFixture[str]) -> None:
    asked = instruction_sets()[-2:]
    options = ("bench", draft_file(), "-p", 2, "-n", 2, "-r", 1, "-t", 1)
    outcome = run_cli(capsys, *options, "--isa", ",".join(asked), "--json")
    assert outcome.code == 0, outcome
    for row in json.loads(outcome.out)["results"]:
        assert list(row["levels"]) == asked
        assert all(one["t_s_median"] > 0 for one in row["levels"].values())
    outcome = run_cli(capsys, "bench", "no-such-model.gguf", "--isa", asked[0])
    assert outcome.is_short_error(1) and "no such file" in outcome.err


def test_a_process_that_uses_another_level(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(Fake):
        ready = "base"

        def close(self) -> None:
            closed.append(self.name)

    closed: list[str] = []
    monkeypatch.setattr(levels, "Apart", lambda name, *_: Other(name, 1, []))
    with pytest.raises(BackendError, match="expected kernels of avx2, got those of base"):
        levels.open_level("avx2", DEMO, 8, 1)
    assert closed == ["the level avx2"]


def test_what_ends_a_process_apart_is_told() -> None:
    with pytest.raises(BackendError, match=r"it failed with code 1: .*No module named"):
        Apart("it", "no_such_module", ())
    with pytest.raises(BackendError, match="it failed with code 0: no message"):
        Apart("it", "keyword", ())


needs_peer = pytest.mark.skipif("ik_llama.cpp" not in peers.installed(), reason="no ik_llama.cpp")


@needs_peer
def test_peer(capsys: pytest.CaptureFixture[str]) -> None:
    model = draft_file()
    options = ("--device", DEVICE, "-p", "1,3", "-n", 2, "-r", 1, "--peers", "ik_llama.cpp")
    outcome = run_cli(capsys, "bench", model, *options, "--json")
    assert outcome.code == 0, outcome
    report = json.loads(outcome.out)
    assert (report["peer"], report["peers"]) == ("ik_llama.cpp", ["ik_llama.cpp"])
    for row in report["results"]:
        assert row["ratio"] == pytest.approx(row["t_s_median"] / row["peer"]["t_s_median"])
        assert math.isfinite(row["ratio"]) and row["ratio"] > 0
        assert row["peers"] == {"ik_llama.cpp": row["peer"]}


@pytest.mark.parametrize("name", sorted(peers._ENGINES))
def test_peer_computes_the_same_function(name: str) -> None:
    if name not in peers.installed():
        pytest.skip(f"no {name}")
    path, tokens = draft_file(), [295, 4304, 508, 409]
    done = subprocess.run(
        [sys.executable, "-c", LOGITS, name, str(path), *map(str, tokens)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
    )
    if done.returncode == -signal.SIGILL:
        pytest.skip(f"this build of {name} is for another processor")
    assert done.returncode == 0, done.stderr
    theirs = np.frombuffer(done.stdout[-4 * riverrun.load(path, DEVICE).n_vocab :], np.float32)
    ours = riverrun.load(path, DEVICE).session(64).prefill(tokens)
    assert np.argmax(ours) == np.argmax(theirs)
    assert np.corrcoef(ours, theirs)[0, 1] > 0.999


LOGITS = """
import sys
from riverrun.bench import peers
peer = peers._ENGINES[sys.argv[1]](sys.argv[2], 64, 1)
logits = peer.evaluate(list(map(int, sys.argv[3:])), 0, True)
sys.stdout.buffer.write(logits.tobytes())
"""


@needs_peer
def test_peer_that_cannot_run_the_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = riverrun.load

    def renamed(*arguments: object, **options: object) -> riverrun.Model:
        model = load(DEMO, DEVICE)
        object.__setattr__(model.source, "path", DEMO.with_name("gone.gguf"))
        return model

    monkeypatch.setattr(riverrun, "load", renamed)
    outcome = run_cli(capsys, *SMALL, "--peers", "ik_llama.cpp")
    assert outcome.is_short_error(1), outcome
    assert "ik_llama.cpp" in outcome.err and "gone.gguf" in outcome.err
