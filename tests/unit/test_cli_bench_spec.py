"""`riverrun bench spec` and the measuring behind it."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import riverrun
from cli import DEVICE, run_cli
from demo import demo, draft_file, loaded_once
from paths import DEMO
from riverrun.bench.spec import Options, Runner, SpecBench, default_chains, parting
from riverrun.bench.spec_plot import acceptance, page
from riverrun.bench.spec_prompts import PROMPTS, choose_prompts
from riverrun.bench.spec_report import verdict
from riverrun.bench.spec_rows import KEPT, SYNTHETIC, make_report
from riverrun.bench.spec_synthetic import Coins, token_range
from riverrun.engine.chooser import Chooser
from riverrun.engine.fold_cost import fold_seconds
from riverrun.engine.memory.snapshots import Snapshots
from riverrun.engine.sampler import Sampler, SamplerParams
from riverrun.graph.errors import RequestError
from riverrun.speculative import Draft, Speculation
from riverrun.speculative import acceptance as rules

SMALL = ("bench", "spec", DEMO, "--device", DEVICE, "-n", 8, "--draft-max", 2, "--no-adaptive")
ONE = (*SMALL, "--prompts", "code_python", "--spec", "mtp")
ROW = (
    "prompt prompt_n drafter rollback strategy predicted drafted accepted rate "
    "drafted_per_position accepted_per_position rounds empty skipped host_bytes synthetic "
    "keep_drafters equal first_difference state_equal different_state passed t_s t_s_min t_s_max "
    "wall_s speedup slowdown draft_ms verify_ms rollback_ms"
)
SUMS = (
    "drafter rollback strategy keep_drafters n_requests total_predicted total_draft "
    "total_draft_accepted aggregate_accept_rate wall_s_total speedup worst_slowdown passed"
)


@pytest.fixture(autouse=True)
def one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded_once(monkeypatch, DEVICE)


def report_of(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> Any:
    outcome = run_cli(capsys, *arguments, "--json")
    assert outcome.code == code, outcome
    return json.loads(outcome.out)


def keep_all(chooser: Chooser, logits: np.ndarray, draft: Draft, position: int) -> Iterator[int]:
    """A faulty rule: every draft stays, whatever the model says."""
    yield from draft.tokens
    yield chooser.choose(logits[-1], position)


def test_prompts() -> None:
    tokens = {name: len(demo().tokenize(text)) for name, text in PROMPTS.items()}
    assert len(PROMPTS) == 10 == len(set(PROMPTS.values()))
    assert all(50 <= n <= 300 for name, n in tokens.items() if name != "long_code_review")
    assert tokens["long_code_review"] > 600
    assert list(choose_prompts(["translation", "code_cpp"])) == ["translation", "code_cpp"]
    assert choose_prompts([]) == PROMPTS


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--prompts", "code_python,summarize", "--spec", "ngram-simple+mtp", "-r", 2)
    report = report_of(capsys, *SMALL, *options, "--rollback", "auto,checkpoint")
    assert report["passed"] and report["synthetic"] is None
    assert (report["model"], report["n_predict"], report["repetitions"]) == (DEMO.name, 8, 2)
    assert list(report["prompts"]) == ["code_python", "summarize"]
    rows = report["rows"]
    assert [(r["prompt"], r["drafter"], r["rollback"]) for r in rows] == [
        (prompt, *which)
        for prompt in report["prompts"]
        for which in (
            ("none", "none"),
            ("ngram-simple+mtp", "auto"),
            ("ngram-simple+mtp", "checkpoint"),
        )
    ]
    for row in rows:
        assert list(row) == ROW.split()
        assert row["equal"] and row["first_difference"] is None and row["state_equal"] is None
        assert row["predicted"] == 8 and 0 < row["t_s_min"] <= row["t_s"] <= row["t_s_max"]
    for row in (row for row in rows if row["drafter"] != "none"):
        assert row["speedup"] * (1 + row["slowdown"]) == pytest.approx(1)
        assert sum(row["drafted_per_position"]) == row["drafted"] > 0
        assert sum(row["accepted_per_position"]) == row["accepted"]
        assert row["rounds"] + row["accepted"] == row["predicted"] - 1
        assert (row["host_bytes"] > 0) == (row["strategy"] == "checkpoint:host")
        assert min(row["draft_ms"], row["verify_ms"]) > 0
    check_sums(report)
    slowest = max(r["slowdown"] for r in rows if r["slowdown"] is not None)
    assert report["worst"]["slowdown"] == slowest


def check_sums(report: Any) -> None:
    assert len(report["aggregates"]) == 3 and len(report["round_costs"]) == 2
    for sums in report["aggregates"]:
        assert list(sums) == SUMS.split()
        who = (sums["drafter"], sums["rollback"])
        mine = [r for r in report["rows"] if (r["drafter"], r["rollback"]) == who]
        assert sums["n_requests"] == 2 and sums["total_predicted"] == 16
        assert sums["total_draft"] == sum(r["drafted"] for r in mine)
        assert sums["total_draft_accepted"] == sum(r["accepted"] for r in mine)
        assert sums["wall_s_total"] == pytest.approx(sum(r["wall_s"] for r in mine))
        if sums["total_draft"]:
            rate = sums["total_draft_accepted"] / sums["total_draft"]
            assert sums["aggregate_accept_rate"] == pytest.approx(rate)
    for cost in report["round_costs"]:
        assert list(cost["ms"]) == list(cost["plain_steps"])
        assert list(cost["ms"]) == ["draft", "verify", "rollback", "python", "whole"]
        assert cost["rounds"] > 0 and cost["tokens"] >= 2
    assert all(n > 0 for n, _ in report["round_costs"][0]["fold_us"])


def test_a_draft_model(capsys: pytest.CaptureFixture[str]) -> None:
    draft = draft_file()
    options = ("--prompts", "qa_factual", "--spec", "mtp,draft", "--draft-model", draft)
    report = report_of(capsys, *SMALL, *options)
    assert [row["drafter"] for row in report["rows"]] == ["none", "mtp", "draft"]
    assert all(row["equal"] for row in report["rows"]) and report["rows"][2]["drafted"] > 0


def test_tables_and_plot(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "plot.html"
    outcome = run_cli(capsys, *ONE, "--plot", path)
    assert outcome.code == 0, outcome
    for words in (DEMO.name, "speed-up", "slower", "replay", "skipped", "plain decode steps"):
        assert words in outcome.out
    assert "slow" in outcome.out.splitlines()[-1] and SYNTHETIC not in outcome.out
    check_page(path.read_text(encoding="utf-8"), bars=2)


def check_page(text: str, bars: int) -> ElementTree.Element:
    """Well-formed, with a bar for each row, and without anything from outside."""
    tree = ElementTree.fromstring(text)
    drawn = [r for svg in tree.iter("svg") for r in svg.iter("rect") if r.get("x")]
    assert len(drawn) == bars
    assert "default-src 'none'" in text
    for outside in ("http:", "https:", "src=", "href", "url(", "@import", "<script", "<link"):
        assert outside not in text
    return tree


def test_a_faulty_rule_is_found_and_has_no_speed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(rules.RULES, "match", keep_all)
    options = (*SMALL, "--prompts", "translation", "--spec", "mtp")
    report = report_of(capsys, *options, "--plot", tmp_path / "plot.html", code=1)
    plain, row = report["rows"]
    assert plain["passed"] and not report["passed"]
    assert row["equal"] is False and 0 < row["first_difference"] < 8
    assert all(row[name] is None for name in ROW.split()[ROW.split().index("t_s") :])
    sums = report["aggregates"][1]
    assert sums["wall_s_total"] is sums["speedup"] is None and report["worst"] is None
    assert verdict(row) == f"no, from {row['first_difference']}"
    check_page((tmp_path / "plot.html").read_text(encoding="utf-8"), bars=1)
    outcome = run_cli(capsys, *options)
    assert outcome.code == 1 and verdict(row) in outcome.out
    assert outcome.err == "riverrun bench spec: error: 1 of 2 checks failed\n"


def test_synthetic(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "plot.html"
    options = ("--prompts", "code_cpp", "--spec", "ngram-mod,mtp", "--plot", path)
    options += ("--rollback", "replay,snapshots", "--synthetic-acceptance", "1,0")
    report = report_of(capsys, *SMALL, *options)
    assert report["synthetic"] == {"acceptance": [1.0, 0.0], "note": SYNTHETIC}
    plain, *rows = report["rows"]
    assert plain["equal"] and not plain["synthetic"] and len(rows) == 4
    for row in rows:
        assert row["synthetic"] and row["equal"] is None and row["state_equal"] is True
        # Full drafts, of which the first stays and the second does not, until one token is left.
        assert row["drafted_per_position"] == [3, 3] and row["accepted_per_position"] == [3, 0]
        assert row["t_s"] > 0 and verdict(row) == "state equal"
    text = path.read_text(encoding="utf-8")
    check_page(text, bars=5)
    assert text.count(SYNTHETIC) >= 4


def test_synthetic_is_written_over_every_table(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run_cli(capsys, *ONE, "--synthetic-acceptance", "0.5")
    assert outcome.code == 0 and "state equal" in outcome.out
    assert outcome.out.count(SYNTHETIC) == 5


def test_a_state_that_was_not_rolled_back_is_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Snapshots, "_go_back", lambda self, seq, back: None)
    options = ("--rollback", "snapshots", "--synthetic-acceptance", "0")
    row = report_of(capsys, *ONE, *options, code=1)["rows"][1]
    assert row["state_equal"] is False and row["t_s"] is None
    # Keys of later layers, which come first, follow from the wrong recurrent state.
    assert row["different_state"].split(".")[0] in ("cache_k", "conv_state", "ssm_state")
    assert verdict(row) == f"no: {row['different_state']}"


def test_coins() -> None:
    n = 400
    coins = Coins((0.75, 0.25), n_vocab=n)
    stayed = [[coins.stays(i, position, 5) for position in range(4000)] for i in range(3)]
    assert np.mean(stayed, 1) == pytest.approx([0.75, 0.25, 0.25], abs=0.02)
    chooser = Chooser(Sampler(SamplerParams(temperature=0.0, seed=5), n, [1]), n)
    logits = np.zeros((3, n + 9), np.float32)
    logits[:, n:] = 1.0  # padding, never chosen
    logits[:, 7] = 0.5
    for position in range(50):
        tokens = list(coins(chooser, logits, Draft([3, 7]), position))
        kept = coins.stays(0, position, 5), coins.stays(1, position + 1, 5)
        wanted = [7] if not kept[0] else [3, 8] if not kept[1] else [3, 7, 7]
        assert tokens == wanted
    with pytest.raises(RequestError, match="0 to 1"):
        Coins((1.5,), n)


def test_kept_drafters_remember_and_others_do_not() -> None:
    model = demo()
    prompt = model.tokenize(PROMPTS["high_entropy"])
    asked = Speculation(("ngram-mod",), draft_max=3, adaptive=False, share_ngrams=True)
    runner = Runner(model, len(prompt) + 99, asked, "auto", 3)
    drafted = []
    for keep in (False, True, False):
        run = runner.run(prompt, 80, keep)
        assert run.statistics is not None
        drafted.append(run.statistics.drafted)
    assert drafted[1] > drafted[0] == drafted[2]


def test_kept_drafters_are_marked_everywhere(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "plot.html"
    options = (*SMALL, "--prompts", "qa_factual", "--spec", "ngram-mod", "-r", 2)
    report = report_of(capsys, *options, "--keep-drafters", "--plot", path)
    assert report["keep_drafters"] is True
    assert [row["keep_drafters"] for row in report["rows"]] == [False, True]
    assert [sums["keep_drafters"] for sums in report["aggregates"]] == [False, True]
    text = path.read_text(encoding="utf-8")
    check_page(text, bars=2)
    assert text.count(KEPT) == 4
    outcome = run_cli(capsys, *options, "--keep-drafters")
    assert outcome.out.count(KEPT) == 5
    outcome = run_cli(capsys, *options)
    assert KEPT not in outcome.out


def test_kept_and_synthetic_figures_have_both_marks(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run_cli(capsys, *ONE, "--synthetic-acceptance", "0.5", "--keep-drafters")
    assert outcome.code == 0
    assert outcome.out.count(SYNTHETIC) == outcome.out.count(KEPT) == 5
    assert outcome.out.count("with probability 0.5") == 1


def test_the_whole_of_a_round_holds_its_parts() -> None:
    model = demo()
    asked = Speculation(("mtp",), draft_max=2, adaptive=False)
    bench = SpecBench(model, choose_prompts(["code_cpp"]), [asked], Options(12))
    plain, outcome = bench.run()
    assert plain.median.rounds == [] and len(outcome.median.rounds) > 0
    rounds = outcome.median.rounds
    for one in rounds:
        assert 0 < one.draft_s + one.verify_s + one.rollback_s < one.whole_s
        assert 1 <= one.tokens <= 3
    assert sum(one.whole_s for one in rounds) <= outcome.median.wall_s
    stats = outcome.median.statistics
    assert stats is not None and stats.rounds == len(rounds)
    assert sum(one.folded for one in rounds) <= stats.accepted
    report = make_report(bench, [plain, outcome])
    name = "mtp replay"
    shares = acceptance(report["rows"])[name]
    assert shares == [a / b for a, b in zip(stats.accepted_at, stats.drafted_at, strict=True)]
    assert name in page(report)


def test_fold_seconds() -> None:
    model = demo()
    session = model.session(16, n_rs_seq=3)
    assert np.isfinite(fold_seconds(session, 4, 3, runs=2))
    assert fold_seconds(session, 4, 0) == 0.0
    assert fold_seconds(model.session(16, n_rs_seq=3, rollback="snapshots"), 4, 3) == 0.0
    with pytest.raises(RequestError, match="log of 8"):
        fold_seconds(session, 4, 6)
    tokens = [295, 4304, 508]
    after, fresh = (s.prefill(tokens).copy() for s in (session, model.session(16, n_rs_seq=3)))
    np.testing.assert_array_equal(after, fresh)
    with pytest.raises(RequestError, match="empty"):
        fold_seconds(session, 4, 1)


def test_small_parts() -> None:
    assert parting([1, 2, 3], [1, 2, 3]) is None
    assert parting([1, 5, 3], [1, 2, 3]) == 1 and parting([1], [1, 2]) == 1
    assert default_chains(demo()) == [("ngram-mod",), ("mtp",)]
    model = demo()
    assert token_range(model) == model.tokenizer.n_vocab <= model.n_vocab


def test_default_drafters_without_a_draft_block() -> None:
    model = riverrun.load(draft_file(), DEVICE)
    assert default_chains(model) == [("ngram-mod",)]


def test_bench_of_a_model_is_still_there(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_cli(capsys, "bench", "--help")
    assert found.code == 0 and "bench spec" in found.out
    found = run_cli(capsys, "bench", "spec", "--help")
    assert found.code == 0 and "--synthetic-acceptance" in found.out
    found = run_cli(capsys, "bench", "no-such.gguf", "-p", 1)
    assert found.is_short_error(1) and "no-such.gguf" in found.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("-n", "1"),
        ("-r", "0"),
        ("--prompts", "poem"),
        ("--spec", "psychic"),
        ("--spec", "mtp+mtp"),
        ("--spec", "none"),
        ("--spec", "mtp,"),
        ("--spec", "draft"),
        ("--rollback", "auto,magic"),
        ("--draft-max", "0"),
        ("--synthetic-acceptance", "0.5,1.5"),
        ("--synthetic-acceptance", "often"),
        ("--plot", "no/such/folder/plot.html"),
    ],
    ids=" ".join,
)
def test_usage_errors(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run_cli(capsys, "bench", "spec", "no-such-model.gguf", *arguments)
    assert outcome.is_short_error(2), outcome


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("no-such-model.gguf",), "no-such-model.gguf"),
        ((DEMO, "-c", "100"), "(-c)"),
        ((DEMO, "--spec", "mtp", "--n-rs-seq", "0"), "n_rs_seq"),
    ],
    ids=("model", "context", "window"),
)
def test_failures(
    arguments: tuple[Any, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = run_cli(capsys, "bench", "spec", *arguments, "--device", DEVICE, "--draft-max", 2)
    assert outcome.is_short_error(1) and words in outcome.err
