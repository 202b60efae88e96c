"""The report of spec_rows.make_report as one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .spec_report import conclusions, verdict
from .spec_rows import Report, Row, ending, label, mark_lines

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
:root{color-scheme:light dark}
body{font:13px/1.45 system-ui,sans-serif;margin:0 auto;max-width:1100px;padding:12px 20px}
h1{font-size:19px;margin:4px 0}h2{font-size:15px;margin:22px 0 6px}p{margin:4px 0}
.mark{font-weight:600;color:#c2410c}
.key{display:flex;flex-wrap:wrap;gap:4px 18px;padding:0;list-style:none}
.key svg{vertical-align:-1px;margin-right:5px}
svg text{font-size:11px;fill:CanvasText}svg text.end{text-anchor:end}
svg text.mid{text-anchor:middle}svg .axis{stroke:#8888;fill:none}svg .no{fill:#c2410c}
svg .line{fill:none;stroke-width:2}
"""
COLOURS = ("#8a8f98", "#2467b8", "#d9822b", "#2e8b57", "#9b59b6", "#c0392b", "#16a085", "#b8860b")
BAR, GAP, LEFT, WIDTH, RIGHT = 15, 10, 130, 960, 210
PLOT_WIDTH, PLOT_HEIGHT, MARGIN = 560, 220, 40


def page(report: Report) -> str:
    """Bars of tokens per second for each prompt and drafter, with the check beside them, and how
    many drafts stay by their place. The markup is also well-formed XML."""
    title = f"Speculative decoding of {report['model']}"
    names = list(dict.fromkeys(label(row) for row in report["rows"]))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    isa = f", {report['isa']}" if report["isa"] else ""
    facts = (
        f"{report['device']}{isa}, threads {report['threads']}, {report['n_predict']} tokens a "
        f"prompt, greedy, median of {report['repetitions']}"
    )
    mark = "".join(f'<p class="mark">{escape(line)}</p>' for line in mark_lines(report))
    behind = ending(report)
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"/>',
            f"<title>{escape(title + behind)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1><p>{escape(facts)}</p>{mark}",
            *(f"<p>{escape(line)}</p>" for line in conclusions(report)),
            _key(colours),
            f"<h2>Tokens per second{behind}</h2>",
            _bars(report["rows"], colours),
            f"<h2>Drafts that stay, by their place{behind}</h2>",
            "<p>Of the drafts proposed at a place, the share that stayed; all prompts.</p>",
            _places(report["rows"], colours),
            "</body></html>\n",
        ]
    )


def _key(colours: dict[str, str]) -> str:
    items = (
        f'<li><svg width="11" height="11"><rect width="11" height="11" fill="{colour}"/></svg>'
        f"{escape(name)}</li>"
        for name, colour in colours.items()
    )
    return f'<ul class="key">{"".join(items)}</ul>'


def _bars(rows: Sequence[Row], colours: dict[str, str]) -> str:
    """A group of bars for each prompt; a row whose check failed has words instead."""
    most = max((row["t_s"] or 0.0 for row in rows), default=0.0) or 1.0
    parts, y, before = [], 0, None
    for row in rows:
        if row["prompt"] != before:
            y += GAP if before else 0
            parts.append(f'<text x="0" y="{y + 11}">{escape(row["prompt"])}</text>')
            before = row["prompt"]
        parts.append(_bar(row, y, most, colours[label(row)]))
        y += BAR
    return f'<svg viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}">{"".join(parts)}</svg>'


def _bar(row: Row, y: int, most: float, colour: str) -> str:
    check = verdict(row)
    if row["t_s"] is None:
        return f'<text class="no" x="{LEFT}" y="{y + 11}">{escape(f"equal: {check}")}</text>'
    width = (WIDTH - LEFT - RIGHT) * row["t_s"] / most
    gain = "" if row["speedup"] is None else f", {row['speedup']:.2f} x"
    words = f"{row['t_s']:.1f} t/s{gain}, equal: {check}"
    return (
        f'<rect x="{LEFT}" y="{y + 1}" width="{width:.1f}" height="{BAR - 3}" fill="{colour}"/>'
        f'<text x="{LEFT + width + 5:.1f}" y="{y + 11}">{escape(words)}</text>'
    )


def acceptance(rows: Sequence[Row]) -> dict[str, list[float]]:
    """For each drafter and strategy the share of drafts that stayed, by place, over all rows."""
    found: dict[str, list[float]] = {}
    for name in dict.fromkeys(label(row) for row in rows if row["drafted"]):
        mine = [row for row in rows if label(row) == name]
        longest = max(len(row["drafted_per_position"]) for row in mine)
        found[name] = []
        for i in range(longest):
            here = [row for row in mine if len(row["drafted_per_position"]) > i]
            stayed = sum(row["accepted_per_position"][i] for row in here)
            found[name].append(stayed / sum(row["drafted_per_position"][i] for row in here))
    return found


def _places(rows: Sequence[Row], colours: dict[str, str]) -> str:
    shares = acceptance(rows)
    longest = max(map(len, shares.values()), default=0)
    if not longest:
        return "<p>No drafts were proposed.</p>"
    x0, y0 = MARGIN, PLOT_HEIGHT - MARGIN // 2
    step, height = (PLOT_WIDTH - 2 * MARGIN) / max(1, longest - 1), y0 - 10
    parts = [f'<path class="axis" d="M{x0},10V{y0}H{PLOT_WIDTH - MARGIN + 10}"/>']
    for share in (0.0, 0.5, 1.0):
        at = y0 - share * height + 4
        parts.append(f'<text class="end" x="{x0 - 6}" y="{at:.0f}">{100 * share:.0f} %</text>')
    for i in sorted({0, longest // 2, longest - 1}):
        at = x0 + i * step
        parts.append(f'<text class="mid" x="{at:.1f}" y="{y0 + 15}">{i + 1}</text>')
    for name, line in shares.items():
        points = [(x0 + i * step, y0 - share * height) for i, share in enumerate(line)]
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline class="line" stroke="{colours[name]}" points="{drawn}"/>')
        for (x, y), share in zip(points, line, strict=True):
            words = escape(f"{name}: {100 * share:.0f} %")
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colours[name]}">'
                f"<title>{words}</title></circle>"
            )
    return (
        f'<svg viewBox="0 0 {PLOT_WIDTH} {PLOT_HEIGHT}" width="{PLOT_WIDTH}" '
        f'height="{PLOT_HEIGHT}">{"".join(parts)}</svg>'
    )
