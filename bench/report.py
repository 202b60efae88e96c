"""A whole benchmark of a model: results as one object, and as a table for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..backends import Backend
from ..backends.cpu import instruction_sets
from ..engine import Model
from ..graph.errors import BackendError
from .apart import Apart, Row
from .levels import open_level
from .measure import read_bandwidth
from .peers import open_peer
from .throughput import Bench, Workload, session_context

Report = dict[str, Any]


@dataclass(frozen=True)
class Beside:
    """What is measured beside a model, each in a process of its own. peers: engines by name;
    whatever: leave out peers that do not run the file, as long as one does."""

    peers: Sequence[str] = ()
    whatever: bool = False
    tell: Callable[[str], None] = lambda text: None


def run_report(
    model: Model,
    tests: Sequence[Workload],
    repetitions: int,
    n_ctx: int | None = None,
    beside: Beside = Beside(),
    progress: Callable[[Workload], None] = lambda test: None,
) -> Report:
    """Measure all tests, each right before the peers' same test.

    Rows of "results" are those of `Bench.measure`; with peers each has their rows under "peers",
    by name, with "ratio", our rate over theirs; those of the first one are "peer" and "ratio" as
    well. "memory": the rate at which all threads read as many bytes, or what copies on a card move,
    and what decoding reads and reaches of it. Raises RequestError for a context that is too small,
    BackendError for a peer that does not run."""
    context = n_ctx or session_context(tests)
    threads = model.backend.threads or 1
    with ExitStack() as opened:
        peers = _open_peers(opened, beside, model.source.path, context, threads)
        bench = Bench(model, context)
        results = []
        for test in tests:
            progress(test)
            row = bench.measure(test, repetitions)
            results.append(row | _others(row, peers, test, repetitions))
    return {
        "model": model.name,
        "device": model.device,
        "threads": threads,
        "isa": instruction_sets()[-1] if model.device == "cpu" else None,
        "on_host": model.backend.on_host,
        "n_ctx": context,
        "repetitions": repetitions,
        "peer": next(iter(peers), None),
        "peers": list(peers),
        "results": results,
        "memory": _memory(bench.weight_bytes(), model.backend, results),
        **_launches(bench),
    }


def run_levels(
    path: Path,
    levels: Sequence[str],
    threads: int,
    tests: Sequence[Workload],
    repetitions: int,
    n_ctx: int | None = None,
    beside: Beside = Beside(),
    load: str = "map",
    progress: Callable[[Workload], None] = lambda test: None,
) -> Report:
    """Measure all tests at each instruction-set level of the processor, in turn, and then peers'.

    Rows of "results" have "test", "n", "kind" and the rows of levels under "levels", by name, each
    with "ratio", its rate over the first one's; peers as in `run_report`, their ratios those of the
    first level. Raises BackendError for a level or a peer that does not run."""
    context = n_ctx or session_context(tests)
    with ExitStack() as opened:
        running = {
            level: opened.enter_context(open_level(level, path, context, threads, load))
            for level in levels
        }
        peers = _open_peers(opened, beside, path, context, threads)
        results = []
        for test in tests:
            progress(test)
            rows = {level: one.measure(test, repetitions) for level, one in running.items()}
            first = rows[levels[0]]
            for row in rows.values():
                row["ratio"] = row["t_s_median"] / first["t_s_median"]
            head = {"test": test.name, "n": test.n, "kind": test.kind, "label": test.label}
            head["levels"] = rows
            results.append(head | _others(first, peers, test, repetitions))
    return {
        "model": path.name,
        "device": "cpu",
        "threads": threads,
        "isa": list(levels),
        "n_ctx": context,
        "repetitions": repetitions,
        "peer": next(iter(peers), None),
        "peers": list(peers),
        "results": results,
    }


def _open_peers(
    opened: ExitStack, beside: Beside, path: Path, n_ctx: int, threads: int
) -> dict[str, Apart]:
    peers, failed = {}, []
    for name in beside.peers:
        try:
            peers[name] = opened.enter_context(open_peer(name, path, n_ctx, threads))
        except BackendError as error:
            failed.append(error)
    if failed and not (beside.whatever and peers):
        raise failed[0]
    for why in failed:
        beside.tell(f"left out: {why}")
    return peers


def _others(
    ours: Row, peers: Mapping[str, Apart], test: Workload, repetitions: int
) -> dict[str, Any]:
    """What peers add to a row, of tests that they know."""
    if test.by_engine:
        return {}
    rows = {name: peer.measure(test, repetitions) for name, peer in peers.items()}
    if not rows:
        return {}
    for row in rows.values():
        row["ratio"] = ours["t_s_median"] / row["t_s_median"]
    first = next(iter(rows.values()))
    return {"peers": rows, "peer": first, "ratio": first["ratio"]}


def _launches(bench: Bench) -> dict[str, int]:
    """How many kernels a pass of one token launches, where that is counted: on cards."""
    launches = bench.launches()
    return {} if launches is None else {"launches": launches}


def _memory(weight_bytes: int, backend: Backend, results: list[dict[str, Any]]) -> dict[str, Any]:
    limit = backend.copy_rate() or read_bandwidth(backend.threads or 1, weight_bytes)
    memory: dict[str, Any] = {"read_gb_s": limit / 1e9, "weight_bytes_per_token": weight_bytes}
    for row in results:
        if row["test"] == "decode" and not row["depth"]:
            reached = weight_bytes * row["t_s_median"]
            memory["decode_gb_s"] = reached / 1e9
            memory["decode_percent_of_read"] = 100 * reached / limit
    return memory


def print_report(report: Report, console: Console) -> None:
    """The report as a compact table."""
    levels = isinstance(report["isa"], list)
    isa = f", {report['isa']}" if report["isa"] and not levels else ""
    console.print(
        f"{report['model']} on {report['device']}{isa}, threads {report['threads']}, "
        f"median of {report['repetitions']}",
        markup=False,
        highlight=False,
    )
    shown = _on_device if any("t_s_on_device" in row for row in report["results"]) else _of_model
    console.print(_table(report, _of_level if levels else shown))
    if not levels:
        console.print("\n".join(_below(report)), markup=False, highlight=False)


def _below(report: Report) -> list[str]:
    memory = report["memory"]
    how = "read with these threads" if report["on_host"] else "moved by copies on the card"
    lines = [f"memory: {memory['read_gb_s']:.1f} GB/s {how}"]
    if "decode_gb_s" in memory:
        lines.append(
            f"decoding reads {memory['weight_bytes_per_token'] / 1e6:.1f} MB of weights a token: "
            f"{memory['decode_gb_s']:.1f} GB/s, {memory['decode_percent_of_read']:.0f} % of that"
        )
    if any(row["kind"] == "ahead" for row in report["results"]):
        lines.append(
            "ahead: the device chooses each token, and the next pass is started before it is read"
        )
    for row in report["results"]:
        if "decode_overhead_us" in row:
            lines.append(f"outside the plan {row['decode_overhead_us']:.0f} us a token")
    if "launches" in report:
        lines.append(f"a pass of one token launches {report['launches']} kernels")
    return lines


def _of_model(row: Row) -> dict[str, str]:
    """The figures of a row by their column."""
    names = {"t/s": "t_s_median", "min": "t_s_min", "max": "t_s_max", "ms": "ms_median"}
    return {column: _figures(row[name]) for column, name in names.items()}


def _on_device(row: Row) -> dict[str, str]:
    """The same of a card, where passes are timed with their logits left there, too."""
    found = row.get("t_s_on_device")
    return {**_of_model(row), "logits stay": "" if found is None else _figures(found)}


def _of_level(row: Row) -> dict[str, str]:
    shown: dict[str, str] = {}
    for level, one in row["levels"].items():
        ratio = f" ({one['ratio']:.2f})" if len(shown) else ""
        shown[f"{level} t/s"] = f"{_figures(one['t_s_median'])}{ratio}"
    return shown


def _table(report: Report, figures: Callable[[Row], dict[str, str]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("test", "kind"):
        table.add_column(name)
    rows = [figures(row) for row in report["results"]]
    for name in rows[0]:
        table.add_column(name, justify="right")
    for peer in report["peers"]:
        table.add_column(peer, justify="right")
        table.add_column("ratio", justify="right")
    for row, shown in zip(report["results"], rows, strict=True):
        others = []
        for peer in report["peers"]:
            one = row.get("peers", {}).get(peer)
            others += [_figures(one["t_s_median"]), f"{one['ratio']:.2f}"] if one else ["", ""]
        table.add_row(row["label"], row["kind"], *shown.values(), *others)
    return table


def _figures(value: float) -> str:
    return f"{value:.{0 if value >= 1000 else 1 if value >= 10 else 3}f}"
