"""A whole benchmark of a model: results as one object, and as a table for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from rich.console import Console
from rich.table import Table

from ..backends import Backend
from ..backends.cpu import instruction_sets
from ..engine import Model
from .measure import read_bandwidth
from .peers import NAME, Peer
from .throughput import Bench, Workload

Report = dict[str, Any]


def run_report(
    model: Model,
    tests: Sequence[Workload],
    repetitions: int,
    n_ctx: int | None = None,
    with_peer: bool = False,
    progress: Callable[[Workload], None] = lambda test: None,
) -> Report:
    """Measure all tests, each right before the peer's same test.

    Rows of "results" are those of `Bench.measure`; with a peer each has the peer's row under
    "peer" and "ratio", our rate over the peer's. "memory": the rate at which all threads read as
    many bytes, or what copies on a card move, and what decoding reads and reaches of it. Raises
    RequestError for a context that is too small, BackendError for a peer that does not run."""
    context = n_ctx or max(test.context for test in tests)
    threads = model.backend.threads or 1
    opened = Peer(model.source.path, context, threads) if with_peer else nullcontext()
    with opened as peer:
        bench = Bench(model, context)
        results = []
        for test in tests:
            progress(test)
            row = bench.measure(test, repetitions)
            if peer:
                row["peer"] = peer.measure(test, repetitions)
                row["ratio"] = row["t_s_median"] / row["peer"]["t_s_median"]
            results.append(row)
    return {
        "model": model.name,
        "device": model.device,
        "threads": threads,
        "isa": instruction_sets()[-1] if model.device == "cpu" else None,
        "on_host": model.backend.on_host,
        "n_ctx": context,
        "repetitions": repetitions,
        "peer": NAME if with_peer else None,
        "results": results,
        "memory": _memory(bench.weight_bytes(), model.backend, results),
    }


def _memory(weight_bytes: int, backend: Backend, results: list[dict[str, Any]]) -> dict[str, Any]:
    limit = backend.copy_rate() or read_bandwidth(backend.threads or 1, weight_bytes)
    memory: dict[str, Any] = {"read_gb_s": limit / 1e9, "weight_bytes_per_token": weight_bytes}
    for row in results:
        if row["test"] == "decode":
            reached = weight_bytes * row["t_s_median"]
            memory["decode_gb_s"] = reached / 1e9
            memory["decode_percent_of_read"] = 100 * reached / limit
    return memory


def print_report(report: Report, console: Console) -> None:
    """The report as a compact table."""
    isa = f", {report['isa']}" if report["isa"] else ""
    console.print(
        f"{report['model']} on {report['device']}{isa}, threads {report['threads']}, "
        f"median of {report['repetitions']}",
        markup=False,
        highlight=False,
    )
    console.print(_table(report))
    memory = report["memory"]
    how = "read with these threads" if report["on_host"] else "moved by copies on the card"
    lines = [f"memory: {memory['read_gb_s']:.1f} GB/s {how}"]
    if "decode_gb_s" in memory:
        lines.append(
            f"decoding reads {memory['weight_bytes_per_token'] / 1e6:.1f} MB of weights a token: "
            f"{memory['decode_gb_s']:.1f} GB/s, {memory['decode_percent_of_read']:.0f} % of that"
        )
    for row in report["results"]:
        if "decode_overhead_us" in row:
            lines.append(f"outside the plan {row['decode_overhead_us']:.0f} us a token")
    console.print("\n".join(lines), markup=False, highlight=False)


def _table(report: Report) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("test", "kind"):
        table.add_column(name)
    numbers = ["t/s", "min", "max", "ms"] + ([report["peer"], "ratio"] if report["peer"] else [])
    for name in numbers:
        table.add_column(name, justify="right")
    for row in report["results"]:
        cells = [row["t_s_median"], row["t_s_min"], row["t_s_max"], row["ms_median"]]
        shown = [_figures(value) for value in cells]
        if report["peer"]:
            shown += [_figures(row["peer"]["t_s_median"]), f"{row['ratio']:.2f}"]
        table.add_row(f"{row['test']} {row['n']}", row["kind"], *shown)
    return table


def _figures(value: float) -> str:
    return f"{value:.{0 if value >= 1000 else 1 if value >= 10 else 3}f}"
