"""`riverrun bench` and the measuring behind it."""

from __future__ import annotations

import importlib.util
import json
import math
import time

import numpy as np
import pytest
import riverrun
from cli import DEVICE, run_cli
from demo import draft_file
from paths import DEMO
from riverrun import _cpu
from riverrun.backends.base import aligned
from riverrun.backends.cpu import CpuBackend
from riverrun.bench import measure, peers
from riverrun.bench.measure import Times, read_bandwidth, repeat
from riverrun.bench.report import run_report
from riverrun.bench.throughput import Bench, TimedRunner, make_tests
from riverrun.engine.sequences import Sequences

SMALL = ("bench", DEMO, "--device", DEVICE, "-p", "1,3", "-n", 2, "-r", 2)


def test_times() -> None:
    times = Times((0.5, 0.25, 1.0))
    assert times.median == 0.5 and times.spread == 1.5
    assert times.rates(2) == {"t_s_median": 4, "t_s_min": 2, "t_s_max": 8, "spread": 1.5}


def test_repeat_leaves_out_the_warm_up_and_what_comes_before() -> None:
    calls: list[str] = []

    def run() -> None:
        if calls.count("run") == 0:
            time.sleep(0.05)
        calls.append("run")

    def before() -> None:
        time.sleep(0.01)
        calls.append("before")

    times = repeat(run, 3, before)
    assert calls == ["before", "run"] * 4
    assert len(times.seconds) == 3 and max(times.seconds) < 0.01


@pytest.mark.parametrize("nbytes", [0, 1, 255, 256 * 64 * 3 + 100, 8 << 20])
def test_read_bandwidth_is_a_plausible_rate(nbytes: int) -> None:
    assert 0 <= read_bandwidth(2, nbytes, repetitions=2) < 1e13
    assert nbytes < 1 << 20 or read_bandwidth(2, nbytes, repetitions=2) > 1e7


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


def test_overhead_is_outside_the_plan_and_without_the_warm_up() -> None:
    bench = Bench(riverrun.load(DEMO, DEVICE), 20)
    decode, calls = bench.session.decode, []

    def slow(token: int, seq: int = 0) -> np.ndarray:
        calls.append(token)
        time.sleep(0.5 if len(calls) <= 3 else 0.02)
        return decode(token, seq)

    bench.session.decode = slow  # type: ignore[method-assign]
    row = bench.measure(make_tests([], 3)[0], 1)
    assert len(calls) == 6
    assert 20_000 < row["decode_overhead_us"] < 100_000


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run_cli(capsys, *SMALL, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    report = json.loads(outcome.out)
    assert " ".join(report) == (
        "model device threads isa on_host n_ctx repetitions peer results memory"
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
    [("-p", "0"), ("-p", "1,x"), ("-n", "-1"), ("-r", "0"), ("-t", "-1"), ("-c", "4", "-p", "8")],
    ids=" ".join,
)
def test_usage_errors(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(capsys, "bench", "no-such-model.gguf", *arguments).is_short_error(2)


def test_peer_that_is_not_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "PACKAGE", "no_such_package")
    outcome = run_cli(capsys, *SMALL, "--peer")
    assert outcome.is_short_error(1) and "riverrun[bench]" in outcome.err


needs_peer = pytest.mark.skipif(
    importlib.util.find_spec(peers.PACKAGE) is None, reason="the peer is not installed"
)


@needs_peer
def test_peer(capsys: pytest.CaptureFixture[str]) -> None:
    model = draft_file()
    options = ("--device", DEVICE, "-p", "1,3", "-n", 2, "-r", 1, "--peer")
    outcome = run_cli(capsys, "bench", model, *options, "--json")
    assert outcome.code == 0, outcome
    report = json.loads(outcome.out)
    assert report["peer"] == peers.NAME
    for row in report["results"]:
        assert row["ratio"] == pytest.approx(row["t_s_median"] / row["peer"]["t_s_median"])
        assert math.isfinite(row["ratio"]) and row["ratio"] > 0


@needs_peer
def test_peer_computes_the_same_function() -> None:
    path = draft_file()
    peer = peers._IkLlama(str(path), 64, 1)
    session = riverrun.load(path, DEVICE).session(64)
    tokens = [295, 4304, 508, 409]
    ours = session.prefill(tokens)
    theirs = peer.evaluate(tokens, 0, True)
    assert np.argmax(ours) == np.argmax(theirs)
    assert np.corrcoef(ours, theirs)[0, 1] > 0.999


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
    outcome = run_cli(capsys, *SMALL, "--peer")
    assert outcome.is_short_error(1), outcome
    assert peers.NAME in outcome.err and "gone.gguf" in outcome.err
