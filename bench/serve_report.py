"""What the answers of a server under load amount to: one object that JSON can hold, and a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from .serve import Load, Measured
from .serve_client import Reply

Figures = dict[str, Any]
WIDTH = 110
_SUMS = ("cache_n", "prompt_n", "draft_n", "draft_n_accepted")


@dataclass(frozen=True)
class Slo:
    """What a good answer keeps to, in milliseconds: the time to its first token, and every gap
    between its events. None: anything will do."""

    first_ms: float | None = None
    gap_ms: float | None = None

    def kept(self, reply: Reply) -> bool:
        """Whether an answer came whole and in time."""
        if reply.error or reply.first_ms is None:
            return False
        in_time = self.first_ms is None or reply.first_ms <= self.first_ms
        gaps = reply.gaps_ms
        return in_time and (self.gap_ms is None or not gaps or max(gaps) <= self.gap_ms)


def make_report(url: str, load: Load, measured: Measured, slo: Slo) -> Figures:
    """The whole report: all answers together, and those to prompts of each length."""
    seconds = measured.ended - measured.began
    rows = [figures(measured.replies, seconds, slo)]
    lengths = list(dict.fromkeys(load.prompt_tokens))
    by_length = [
        {
            "prompt_tokens": length,
            **figures([r for r in measured.replies if r.group == length], seconds, slo),
        }
        for length in lengths
    ]
    return {
        "url": url,
        "model": measured.model,
        "api": load.api,
        "clients": None if load.rate else load.at_once,
        "rate": load.rate,
        "n_predict": load.n,
        "seed": load.seed,
        "not_taken": list(measured.dropped),
        "slo": {"first_ms": slo.first_ms, "gap_ms": slo.gap_ms},
        "seconds": seconds,
        **rows[0],
        "by_prompt": by_length,
    }


def figures(replies: Sequence[Reply], seconds: float, slo: Slo) -> Figures:
    """Counts, rates over `seconds`, and times of answers. Times are those of answers without
    errors; gaps are between events, each of which may bring several tokens."""
    good = [reply for reply in replies if not reply.error]
    failed = [reply for reply in replies if reply.error]
    kept = sum(map(slo.kept, replies))
    predicted = sum(reply.predicted_n for reply in good)
    prompts = sum(reply.prompt_n for reply in good)
    return {
        "requests": len(replies),
        "failed": len(failed),
        "errors": dict(Counter(reply.error for reply in failed).most_common()),
        "first_error": failed[0].message if failed else None,
        "finished": dict(Counter(reply.finish for reply in good).most_common()),
        "prompt_n": prompts,
        "predicted_n": predicted,
        "events": sum(len(reply.events) for reply in good),
        "requests_per_second": _rate(len(good), seconds),
        "predicted_per_second": _rate(predicted, seconds),
        "total_per_second": _rate(prompts + predicted, seconds),
        "first_ms": spread(r.first_ms for r in good if r.first_ms is not None),
        "gap_ms": spread(gap for reply in good for gap in reply.gaps_ms),
        "whole_ms": spread(1e3 * (reply.ended - reply.began) for reply in good),
        "good": kept,
        "good_share": kept / len(replies) if replies else None,
        "good_per_second": _rate(kept, seconds),
        "server": _sums(good),
    }


def spread(values: Iterable[float]) -> Figures | None:
    """Percentiles (linear between neighbours) and the largest of some values, None for none."""
    found = np.fromiter(values, np.float64)
    if not found.size:
        return None
    p50, p90, p99 = np.percentile(found, (50, 90, 99)).tolist()
    return {"p50": p50, "p90": p90, "p99": p99, "max": float(found.max())}


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if seconds > 0 else None


def _sums(replies: Sequence[Reply]) -> Figures | None:
    """Sums of what servers tell in `timings`, of the answers that have it; None where none has."""
    found = [reply.timings for reply in replies if reply.timings]
    if not found:
        return None
    sums = {name: sum(t[name] for t in found if name in t) for name in _SUMS}
    return {**sums, "answers": len(found), "drafting": any("draft_n" in t for t in found)}


def print_serve_report(report: Figures, console: Console) -> None:
    """A row for each length of prompt and one for all, then errors and the server's own counts."""

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    rate = report["rate"]
    pace = f"{rate:g} requests a second" if rate else f"{report['clients']} clients"
    say(
        f"{report['model']} at {report['url']}, {report['api']}, {pace}, "
        f"{report['n_predict']} tokens, {report['seconds']:.1f} s"
    )
    if report["not_taken"]:
        say(f"not taken by this server, and left out: {', '.join(report['not_taken'])}")
    console.print(_table(report))
    for line in _conclusions(report):
        say(line)


def _table(report: Figures) -> Table:
    table = Table(box=None, pad_edge=False)
    heads = ("prompt", "requests", "failed", "first ms p50", "p90", "p99")
    for head in (*heads, "gap ms p50", "p90", "p99", "max", "t/s"):
        table.add_column(head, justify="right", no_wrap=True)
    rows = [(str(row["prompt_tokens"]), row) for row in report["by_prompt"]]
    for name, row in [*rows, ("all", report)] if len(rows) > 1 else rows:
        first, gap = row["first_ms"] or {}, row["gap_ms"] or {}
        cells = [_ms(first.get(key)) for key in ("p50", "p90", "p99")]
        cells += [_ms(gap.get(key)) for key in ("p50", "p90", "p99", "max")]
        rate = row["predicted_per_second"]
        cells.append("" if rate is None else f"{rate:.1f}")
        table.add_row(name, str(row["requests"]), str(row["failed"]), *cells)
    return table


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _conclusions(report: Figures) -> list[str]:
    lines = [
        f"prompts {report['prompt_n']} tokens, generated {report['predicted_n']} in "
        f"{report['events']} events, both {report['total_per_second'] or 0:.1f} t/s; "
        f"{report['requests_per_second'] or 0:.2f} requests a second"
    ]
    limits = [
        f"{what} within {report['slo'][name]:g} ms"
        for name, what in (("first_ms", "first token"), ("gap_ms", "every gap"))
        if report["slo"][name] is not None
    ]
    if limits and report["requests"]:
        lines.append(
            f"{' and '.join(limits)}: {report['good']} of {report['requests']} requests "
            f"({report['good_share']:.1%}), {report['good_per_second'] or 0:.2f} a second"
        )
    server = report["server"]
    if server:
        asked = server["cache_n"] + server["prompt_n"]
        lines.append(f"prompt tokens that were cached: {server['cache_n']} of {asked}")
        if server["drafting"]:
            lines.append(f"drafts kept: {server['draft_n_accepted']} of {server['draft_n']}")
    for kind, count in report["errors"].items():
        lines.append(f"failed, {kind}: {count}")
    if report["first_error"]:
        lines.append(f"the first of them: {report['first_error']}")
    return lines
