"""What products of the processor take and what its cores reach, by level and type of weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from ..graph.errors import RequestError
from .apart import Row, read_names
from .kernel_timing import BLOCK, GROUP, Asked, Timed
from .levels import at_level

OPS = ("mul_mat", "mul_mat_id")
PLACES = ("cache", "memory")
Report = dict[str, Any]


def read_ops(text: str) -> tuple[str, ...]:
    """The ops of "NAME,NAME...". Raises ValueError for one that is no product, or comes twice."""
    return read_names(text, OPS, "op")


def asked_products(ops: Sequence[str], types: Sequence[str], columns: Sequence[int]) -> list[Asked]:
    """All of them, in the order of the report."""
    return [Asked(op, of, n, p) for op in ops for of in types for n in columns for p in PLACES]


def figures(asked: Asked, timed: Timed) -> Row:
    """A row of the report: what the times come to."""
    products = GROUP * BLOCK * asked.columns
    rate = products / timed.seconds
    reached = timed.nbytes / timed.seconds
    return {
        "ns": 1e9 * timed.seconds,
        "cycles": timed.seconds * timed.clock,
        "instructions": timed.instructions,
        "gmac_s": rate / 1e9,
        "gb_s": reached / 1e9,
        "percent_of_peak": 100 * rate / timed.peak if timed.instruction else None,
        "percent_of_read": 100 * reached / timed.read if timed.read else None,
        "clock_ghz": timed.clock / 1e9,
        "peak_instruction": timed.instruction or None,
        "peak_gmac_s": timed.peak / 1e9 if timed.instruction else None,
        "read_gb_s": timed.read / 1e9 if timed.read else None,
    }


def run_kernels(
    levels: Sequence[str], asked: Sequence[Asked], progress: Callable[[Asked], None]
) -> Report:
    """The report: the levels in turn, each in a process of its own. A level without a kernel of its
    own for a type has no row of it. Raises RequestError where that leaves none."""
    results: list[Row] = []
    with ExitStack() as opened:
        module = "riverrun.bench.kernel_timing"
        running = {level: opened.enter_context(at_level(level, module)) for level in levels}
        for each in asked:
            progress(each)
            for level, process in running.items():
                answer = process.ask(asdict(each))
                if answer:
                    row = figures(each, Timed(**answer))
                    results.append({**asdict(each), "isa": level, **row})
    if not results:
        got = ", ".join(levels)
        raise RequestError(
            f"expected a level that has kernels of its own for {asked[0].type}, got {got}; "
            "ask for lower ones, too",
            "isa",
        )
    return {"device": "cpu", "threads": 1, "isa": list(levels), "results": results}


def print_kernels(report: Report, console: Console) -> None:
    """The report as a table."""
    table = Table(box=None, pad_edge=False)
    heads = {"type": "type", "isa": "isa", "n": "columns", "from": "place"}
    if len({row["op"] for row in report["results"]}) > 1:
        heads = {"op": "op", **heads}
    numbers = {
        **{"ns": "ns", "cycles": "cycles", "instr.": "instructions", "GMAC/s": "gmac_s"},
        **{"% peak": "percent_of_peak", "% read": "percent_of_read"},
    }
    for name in (*heads, *numbers):
        table.add_column(name, justify="right" if name in numbers else "left", no_wrap=True)
    for row in report["results"]:
        named = (str(row[name]) for name in heads.values())
        table.add_row(*named, *(_shown(row[name]) for name in numbers.values()))
    console.print("One thread; a block is 16 rows x 32 values, times n columns.")
    console.print(table)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.{0 if value >= 100 else 1}f}"
