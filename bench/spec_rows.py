"""What the outcomes of spec.SpecBench amount to, as one object that JSON can hold."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..backends.cpu import instruction_sets
from .spec import NONE, Outcome, Round, Runner, SpecBench
from .spec_synthetic import SyntheticSpeculation

Row = dict[str, Any]
Report = dict[str, Any]
SYNTHETIC = "synthetic: not model output"
KEPT = "drafters kept: they remember earlier prompts and repetitions"
RATES = ("t_s", "t_s_min", "t_s_max", "wall_s", "speedup", "slowdown")
TIMED = (*RATES, "draft_ms", "verify_ms", "rollback_ms")
PARTS = ("draft", "verify", "rollback", "python")
FoldTable = Sequence[tuple[int, float]]


def make_report(bench: SpecBench, outcomes: Sequence[Outcome]) -> Report:
    """The whole report. Rows of a prompt stand together, plain decoding first.

    A row whose check failed has None for everything that was timed. Sessions are emptied to time
    what they fold."""
    options, model = bench.options, bench.model
    folds = {id(r): r.fold_table(_rounds(outcomes, r)) for r in bench.runners}
    plain = {o.prompt: o for o in outcomes if o.runner.drafter == NONE}
    pairs = [(o, row_of(o, plain[o.prompt], folds[id(o.runner)], options.keep)) for o in outcomes]
    by_runner = [(r, [(o, row) for o, row in pairs if o.runner is r]) for r in bench.runners]
    rows = [row for _, row in pairs]
    return {
        "model": model.name,
        "device": model.device,
        "threads": model.backend.threads or 1,
        "isa": instruction_sets()[-1] if model.device == "cpu" else None,
        "n_ctx": bench.n_ctx,
        "n_predict": options.n,
        "repetitions": options.repetitions,
        "keep_drafters": options.keep,
        "synthetic": None
        if options.rates is None
        else {"acceptance": list(options.rates), "note": SYNTHETIC},
        "prompts": {name: len(tokens) for name, tokens in bench.prompts.items()},
        "rows": rows,
        "aggregates": [aggregate(runner, mine, plain) for runner, mine in by_runner],
        "round_costs": [
            round_cost(runner, mine, plain, folds[id(runner)])
            for runner, mine in by_runner
            if runner.asked
        ],
        "worst": _worst(rows),
        "passed": all(row["passed"] for row in rows),
    }


def marks(report: Report) -> list[str]:
    """What stands beside every figure of a report whose figures are not those of ordinary use."""
    return [SYNTHETIC] * (report["synthetic"] is not None) + [KEPT] * report["keep_drafters"]


def mark_lines(report: Report) -> list[str]:
    """The marks as lines in front of a report."""
    lines = marks(report)
    if report["synthetic"]:
        rates = ", ".join(f"{rate:g}" for rate in report["synthetic"]["acceptance"])
        lines[0] = f"{SYNTHETIC}; drafts stay with probability {rates}"
    return lines


def ending(report: Report) -> str:
    """The marks behind a heading."""
    return "".join(f" ({mark})" for mark in marks(report))


def row_of(outcome: Outcome, plain: Outcome, fold: FoldTable, kept: bool = False) -> Row:
    """Counts and times of the run of median time, and what the check said. Times in milliseconds;
    speedup: over plain decoding; slowdown: the share by which it took longer, negative if less;
    kept: drafters remembered earlier prompts and repetitions."""
    runner, run, stats = outcome.runner, outcome.median, outcome.median.statistics
    tossed = isinstance(runner.asked, SyntheticSpeculation)
    row: Row = {
        "prompt": outcome.prompt,
        "prompt_n": outcome.prompt_n,
        "drafter": runner.drafter,
        "rollback": runner.rollback,
        "strategy": runner.strategy,
        "predicted": len(run.tokens),
        "drafted": stats.drafted if stats else 0,
        "accepted": stats.accepted if stats else 0,
        "rate": _ratio(stats.accepted, stats.drafted) if stats else None,
        "drafted_per_position": list(stats.drafted_at) if stats else [],
        "accepted_per_position": list(stats.accepted_at) if stats else [],
        "rounds": stats.rounds if stats else 0,
        "empty": stats.empty if stats else 0,
        "skipped": stats.skipped if stats else 0,
        "host_bytes": stats.rollback_bytes if stats else 0,
        "synthetic": tossed,
        "keep_drafters": kept and runner.asked is not None,
        "equal": None if tossed else outcome.passed,
        "first_difference": outcome.place,
        "state_equal": outcome.passed if tossed else None,
        "different_state": outcome.state,
        "passed": outcome.passed,
        **dict.fromkeys(TIMED),
    }
    if not outcome.passed:
        return row
    row["t_s"] = _rate(run.tokens, run.predicted_s)
    row["t_s_min"] = _rate(run.tokens, max(r.predicted_s for r in outcome.runs))
    row["t_s_max"] = _rate(run.tokens, min(r.predicted_s for r in outcome.runs))
    row["wall_s"] = run.wall_s
    if stats:
        folded = sum(_fold_s(r, fold) for r in run.rounds)
        row["draft_ms"] = 1e3 * stats.draft_s
        row["verify_ms"] = 1e3 * (stats.verify_s - folded)
        row["rollback_ms"] = 1e3 * (stats.rollback_s + folded)
        if plain.passed:
            row["speedup"] = plain.median.predicted_s / run.predicted_s
            row["slowdown"] = run.predicted_s / plain.median.predicted_s - 1
    return row


def aggregate(
    runner: Runner, mine: Sequence[tuple[Outcome, Row]], plain: dict[str, Outcome]
) -> Row:
    """Sums over the prompts, and the speed-up over plain decoding of all of them."""
    rows = [row for _, row in mine]
    drafted, accepted = sum(r["drafted"] for r in rows), sum(r["accepted"] for r in rows)
    passed = all(row["passed"] for row in rows)
    comparable = passed and runner.asked and all(o.passed for o in plain.values())
    slowdowns = [row["slowdown"] for row in rows if row["slowdown"] is not None]
    return {
        "drafter": runner.drafter,
        "rollback": runner.rollback,
        "strategy": runner.strategy,
        "keep_drafters": any(row["keep_drafters"] for row in rows),
        "n_requests": len(rows),
        "total_predicted": sum(r["predicted"] for r in rows),
        "total_draft": drafted,
        "total_draft_accepted": accepted,
        "aggregate_accept_rate": _ratio(accepted, drafted),
        "wall_s_total": sum(r["wall_s"] for r in rows) if passed else None,
        "speedup": sum(o.median.predicted_s for o in plain.values())
        / sum(o.median.predicted_s for o, _ in mine)
        if comparable
        else None,
        "worst_slowdown": max(slowdowns, default=None),
        "passed": passed,
    }


def round_cost(
    runner: Runner,
    mine: Sequence[tuple[Outcome, Row]],
    plain: dict[str, Outcome],
    fold: FoldTable,
) -> Row:
    """Medians over the rounds that had drafts, by part: milliseconds, and units of a plain decode
    step of the same prompt. whole: from a round's start to the next one's. None where no round had
    drafts or a check failed."""
    steps: dict[str, list[float]] = {part: [] for part in (*PARTS, "whole")}
    seconds: dict[str, list[float]] = {part: [] for part in steps}
    tokens: list[int] = []
    for outcome, row in mine:
        base = plain[outcome.prompt]
        if row["passed"] and base.passed:
            step = base.median.predicted_s / (len(base.median.tokens) - 1)
            for one in (r for r in outcome.median.rounds if r.tokens > 1):
                tokens.append(one.tokens)
                for part, value in _parts(one, fold).items():
                    seconds[part].append(value)
                    steps[part].append(value / step)
    return {
        "drafter": runner.drafter,
        "rollback": runner.rollback,
        "strategy": runner.strategy,
        "rounds": len(tokens),
        "tokens": statistics.median(tokens) if tokens else None,
        "ms": {k: 1e3 * statistics.median(v) for k, v in seconds.items()} if tokens else None,
        "plain_steps": {k: statistics.median(v) for k, v in steps.items()} if tokens else None,
        "fold_us": [[n, 1e6 * s] for n, s in fold],
    }


def label(row: Row) -> str:
    """Drafters, and the strategy where there is one."""
    return f"{row['drafter']} {row['strategy']}" if row["strategy"] else row["drafter"]


def _rounds(outcomes: Sequence[Outcome], runner: Runner) -> list[Round]:
    return [r for o in outcomes if o.runner is runner for r in o.median.rounds]


def _fold_s(one: Round, fold: FoldTable) -> float:
    """Seconds that a round's pass folded for, read off the line between measured numbers."""
    if not fold or one.folded == 0:
        return 0.0
    numbers, seconds = zip(*fold, strict=True)
    return float(np.interp(one.folded, (0, *numbers), (0.0, *seconds)))


def _parts(one: Round, fold: FoldTable) -> dict[str, float]:
    """Seconds by part. What a pass folds counts as rollback."""
    folded = _fold_s(one, fold)
    return {
        "draft": one.draft_s,
        "verify": one.verify_s - folded,
        "rollback": one.rollback_s + folded,
        "python": one.whole_s - one.draft_s - one.verify_s - one.rollback_s,
        "whole": one.whole_s,
    }


def _worst(rows: Sequence[Row]) -> Row | None:
    found = [row for row in rows if row["slowdown"] is not None]
    if not found:
        return None
    worst = max(found, key=lambda row: row["slowdown"])
    names = ("slowdown", "prompt", "drafter", "rollback", "strategy")
    return {name: worst[name] for name in names}


def _rate(tokens: Sequence[int], seconds: float) -> float:
    """Tokens per second; the first one came with the prompt."""
    return (len(tokens) - 1) / seconds


def _ratio(a: float, b: float) -> float | None:
    return a / b if b else None
