"""The report of spec_rows.make_report as tables for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from .spec_rows import PARTS, Report, Row, ending, mark_lines

WIDTH = 118
Column = tuple[str, Callable[[Row], str]]
WHO: list[Column] = [
    ("drafter", lambda row: row["drafter"]),
    ("rollback", lambda row: row["strategy"] or ""),
]
PROMPT: Column = ("prompt", lambda row: row["prompt"])


def print_spec_report(report: Report, console: Console) -> None:
    """Speed of every row beside its check; what rounds did; sums; costs; the worst slowdown."""
    say = _say(console)
    isa = f", {report['isa']}" if report["isa"] else ""
    say(
        f"{report['model']} on {report['device']}{isa}, threads {report['threads']}, "
        f"{report['n_predict']} tokens, greedy, median of {report['repetitions']}"
    )
    for line in mark_lines(report):
        say(line)
    mark = ending(report)
    drafted = [row for row in report["rows"] if row["drafter"] != "none"]
    sections: list[tuple[str, Sequence[Row], Sequence[Column]]] = [
        ("speed", report["rows"], [PROMPT, *WHO, *SPEED]),
        ("rounds and where their time went", drafted, [PROMPT, *WHO, *ROUNDS]),
        ("all prompts", report["aggregates"], [*WHO, *SUMS]),
        (
            "a round with drafts, medians: ms (plain decode steps)",
            report["round_costs"],
            [*WHO, *COSTS],
        ),
    ]
    for title, rows, columns in sections:
        say(f"\n{title}{mark}")
        console.print(_table(rows, columns))
    say("")
    for line in conclusions(report):
        say(line)


def conclusions(report: Report) -> list[str]:
    """The worst slowdown, and which checks failed."""
    lines = []
    worst = report["worst"]
    if worst:
        names = (worst["prompt"], worst["drafter"], worst["strategy"])
        where = ", ".join(name for name in names if name)
        share = 100 * worst["slowdown"]
        if share > 0:
            lines.append(f"worst slowdown against none: {share:.1f} % ({where})")
        else:
            lines.append(f"nothing is slower than none; the least gain: {-share:.1f} % ({where})")
    failed = [row for row in report["rows"] if not row["passed"]]
    if failed:
        lines.append(f"{len(failed)} of {len(report['rows'])} checks failed")
    return lines


def verdict(row: Row) -> str:
    """What the check beside a row's times found."""
    if row["passed"]:
        return "state equal" if row["synthetic"] else "yes"
    if row["different_state"]:
        return f"no: {row['different_state']}"
    return f"no, from {row['first_difference']}"


def _number(name: str, form: str, factor: float = 1) -> Callable[[Row], str]:
    def show(row: Row) -> str:
        value: Any = row[name]
        return "" if value is None else format(factor * value, form)

    return show


def _slower(row: Row) -> str:
    share = row["slowdown"]
    return "" if share is None else f"{100 * share:+.1f} %"


def _part(part: str) -> Callable[[Row], str]:
    def show(row: Row) -> str:
        if row["ms"] is None:
            return ""
        return f"{row['ms'][part]:.2f} ({row['plain_steps'][part]:.2f})"

    return show


SPEED: list[Column] = [
    ("drafted", _number("drafted", "d")),
    ("kept", _number("accepted", "d")),
    ("rate", _number("rate", ".2f")),
    ("t/s", _number("t_s", ".1f")),
    ("speed-up", _number("speedup", ".2f")),
    ("slower", _slower),
    ("equal", verdict),
]
ROUNDS: list[Column] = [
    ("rounds", _number("rounds", "d")),
    ("empty", _number("empty", "d")),
    ("skipped", _number("skipped", "d")),
    ("draft ms", _number("draft_ms", ".1f")),
    ("verify ms", _number("verify_ms", ".1f")),
    ("rollback ms", _number("rollback_ms", ".2f")),
    ("host MB", _number("host_bytes", ".1f", 1e-6)),
]
SUMS: list[Column] = [
    ("requests", _number("n_requests", "d")),
    ("predicted", _number("total_predicted", "d")),
    ("drafted", _number("total_draft", "d")),
    ("kept", _number("total_draft_accepted", "d")),
    ("rate", _number("aggregate_accept_rate", ".2f")),
    ("wall s", _number("wall_s_total", ".2f")),
    ("speed-up", _number("speedup", ".2f")),
]
COSTS: list[Column] = [
    ("rounds", _number("rounds", "d")),
    ("tokens", _number("tokens", "g")),
    *((part, _part(part)) for part in (*PARTS, "whole")),
]
LEFT = ("prompt", "drafter", "rollback", "equal")


def _table(rows: Sequence[Row], columns: Sequence[Column]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name, _ in columns:
        table.add_column(name, justify="left" if name in LEFT else "right", no_wrap=True)
    before = None
    for row in rows:
        cells = [show(row) for _, show in columns]
        if columns[0] is PROMPT:
            cells[0], before = (cells[0] if cells[0] != before else ""), cells[0]
        table.add_row(*cells)
    return table


def _say(console: Console) -> Callable[[str], None]:
    return lambda text: console.print(text, markup=False, highlight=False, soft_wrap=True)
