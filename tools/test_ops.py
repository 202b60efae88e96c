"""`riverrun test-ops`: every op's cases on a backend, against the numpy reference."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from ..graph.plugins import OPS, load_plugins
from .files import write_text
from .loading import Loading
from .misuse import misuse, usage_errors
from .options import Json
from .parameters import Offer, command

if TYPE_CHECKING:
    from ..backends import Backend
    from ..backends.harness import CaseResult
    from ..bench.op_timing import Ceilings, OpTime
    from ..graph.case import BoundCase

BackendName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--backend",
        metavar="B[,B]",
        help="Names that `devices` lists.",
        show_default="cpu; with --support all of them",
    ),
]
OpNames: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--op", metavar="NAME", help="Only this op; may be given several times."),
]
CaseIds: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--case", metavar="ID", help="Only this case; may be given several times."),
]
Perf: TypeAlias = Annotated[
    bool, typer.Option("--perf", help="Check, then time the cases that are for measuring.")
]
Support: TypeAlias = Annotated[
    bool, typer.Option("--support", help="Count the cases that each backend takes; run nothing.")
]
Rows: TypeAlias = Annotated[
    bool, typer.Option("--rows", help="Compare rows alone and among others, bit for bit.")
]
FromModel: TypeAlias = Annotated[
    Path | None,
    typer.Option("--from-model", metavar="FILE", help="The nodes of this model's steps as cases."),
]
Kind: TypeAlias = Annotated[
    str,
    typer.Option(
        "--kind",
        metavar="step|prefill",
        help="Plans to check: step takes row-exact kernels only, prefill the fastest.",
    ),
]
# Options by the arguments that errors of unknown names are about.
NAMED = {"op": ("--op",), "case": ("--case",), "backend": ("--backend",)}
Write: TypeAlias = Annotated[
    Path | None, typer.Option("--write", metavar="FILE", help="With --support: the counts as JSON.")
]


@command
def test_ops(
    loading: Annotated[Loading, Offer(only=("threads",))],
    backend: BackendName = None,
    op: OpNames = None,
    case: CaseIds = None,
    perf: Perf = False,
    support: Support = False,
    rows: Rows = False,
    from_model: FromModel = None,
    write: Write = None,
    kind: Kind = "step",
    as_json: Json = False,
) -> None:
    """Check ops on a backend against the numpy reference; exit with 1 when a case fails."""
    _require_one_of(perf=perf, support=support, rows=rows)
    if from_model and (support or rows):
        raise misuse("goes with --perf or none of the others", "--from-model")
    if write and not support:
        raise misuse("goes with --support", "--write")
    if kind not in ("step", "prefill"):
        raise misuse(f"step or prefill, got {kind!r}", "--kind")
    if kind == "prefill" and (rows or support):
        raise misuse("rows are those of step plans", "--kind")
    threads = loading.threads
    load_plugins(OPS)
    with usage_errors(NAMED):
        if support:
            _support(_devices(backend), op, write, as_json)
            return
        chosen = _choose(op, case, perf, from_model, kind)
    name = backend or "cpu"
    _require_device(name)
    if rows:
        results = _run_rows(name, threads, [c for _, c in chosen], as_json)
    elif perf:
        results = _run_perf(name, threads, chosen, as_json)
    else:
        results = _run_cases(name, threads, chosen, as_json)
    if any(result.status == "failed" for result in results):
        raise typer.Exit(1)


def _require_one_of(**modes: bool) -> None:
    given = [f"--{name}" for name, said in modes.items() if said]
    if len(given) > 1:
        raise misuse(f"one of {' and '.join(given)} at a time", given[1])


def _require_device(name: str) -> None:
    from ..backends import devices, is_card
    from ..bench.op_cases import unknown

    known = ["auto", *(d.name for d in devices() if d.usable)]
    with usage_errors(NAMED):
        for part in name.split(","):
            # Why a card cannot be used is said when it is opened.
            if part.strip() not in [*known, "null"] and not is_card(part.strip()):
                raise unknown("backend", part.strip(), known)


def _open(name: str, threads: int | None) -> Backend:
    from .. import backends

    return backends.open_backend(name, threads)


def _devices(name: str | None) -> list[Backend]:
    from ..backends import devices

    if name:
        _require_device(name)
    names = [name] if name else [d.name for d in devices() if d.usable]
    return [_open(n, None) for n in names]


def _choose(
    ops: list[str] | None, ids: list[str] | None, perf: bool, model: Path | None, kind: str
) -> list[tuple[str, BoundCase]]:
    """(plan kind, case) of what is to run; a case asked for by id runs whatever it is for, and the
    nodes of a model in the plans that they are in."""
    from ..bench.model_cases import model_cases
    from ..bench.op_cases import find_cases, registered_cases

    registered = registered_cases(ops)
    cases: Sequence[BoundCase] = registered
    if model:
        wanted = {case.op.name for case in registered} if ops else None
        cases = [c for c in model_cases(model) if wanted is None or c.op.name in wanted]
    if ids:
        cases = find_cases(ids, cases)
    elif not model:
        cases = [c for c in cases if ("perf" in c.tags) == perf]
    return [(getattr(case, "kind", kind), case) for case in cases]


def _run_cases(
    name: str, threads: int | None, cases: Sequence[tuple[str, BoundCase]], as_json: bool
) -> list[CaseResult]:
    from ..bench.op_cases import run_cases, summary

    opened = _open(name, threads)
    results = run_cases(opened, cases, (lambda result: None) if as_json else _print_failure)
    if as_json:
        print(json.dumps({"summary": summary(results), "cases": [_row(r) for r in results]}))
    else:
        _print_refusals(results)
        _print_summary(_title(opened), results)
    return results


def _run_rows(
    name: str, threads: int | None, cases: Sequence[BoundCase], as_json: bool
) -> list[CaseResult]:
    from ..backends.row_exact import check_rows
    from ..bench.op_cases import summary

    opened = [_open(name, 1), _open(name, max(2, threads or 2))]
    by_op: dict[str, list[CaseResult]] = {}
    for case in cases:
        by_op.setdefault(case.op.name, [])
    for op, results in by_op.items():
        results += [check_rows(opened, case) for case in cases if case.op.name == op]
        if not as_json:
            _print_rows(op, results)
    everything = [r for results in by_op.values() for r in results]
    if as_json:
        rows = [_row(r) for r in everything]
        print(json.dumps({"summary": summary(everything), "cases": rows}))
    else:
        _print_summary(f"{name}, threads 1 and {opened[1].threads or 1}", everything)
    return everything


def _run_perf(
    name: str, threads: int | None, cases: Sequence[tuple[str, BoundCase]], as_json: bool
) -> list[CaseResult]:
    from ..bench.op_cases import summary
    from ..bench.op_timing import measure_ceilings, time_cases

    opened = _open(name, threads)
    top = measure_ceilings(opened)
    if not as_json:
        fma = f", multiply-adds {top.fma / 1e9:.0f} GFLOP/s" if top.fma else ""
        print(f"{_title(opened)}: copies {top.copy / 1e9:.1f} GB/s{fma}", flush=True)
    rows = time_cases(
        opened, cases, (lambda row: None) if as_json else lambda row: _print_time(row, top)
    )
    results = [row.result for row in rows]
    if as_json:
        ceilings = {"copy_gb_s": top.copy / 1e9, "fma_gflop_s": top.fma and top.fma / 1e9}
        found = [{**_row(row.result), **_times(row, top)} for row in rows]
        print(json.dumps({"summary": summary(results), "ceilings": ceilings, "cases": found}))
    else:
        _print_refusals(results)
        _print_summary(_title(opened), results)
    return results


def _support(
    opened: Sequence[Backend], ops: list[str] | None, write: Path | None, as_json: bool
) -> None:
    from ..bench.op_support import kernel_levels, support_table

    table = support_table(opened, ops)
    if write:
        lines = ",\n".join(f"  {json.dumps(op)}: {json.dumps(row)}" for op, row in table.items())
        write_text(write, f"{{\n{lines}\n}}\n")
    levels = {b.name: kernel_levels(b) for b in opened if b.kernels}
    if as_json:
        print(json.dumps({"support": table, "kernels": levels}))
        return
    width = max(len(op) for op in table)
    names = [b.name for b in opened]
    print(f"{'op':{width}}  cases  " + "  ".join(f"{n:>9}" for n in names) + "  kernels")
    for op, row in table.items():
        counts = "  ".join(f"{row[n]:9}" for n in names)
        isas = "; ".join(
            f"{n}: {', '.join(found[op])}" for n, found in levels.items() if op in found
        )
        print(f"{op:{width}}  {row['cases']:5}  {counts}  {isas}".rstrip())


def _title(opened: Backend) -> str:
    from ..backends.cpu import instruction_sets

    threads = f", threads {opened.threads}" if opened.threads else ""
    return opened.name + (f", {instruction_sets()[-1]}" if opened.name == "cpu" else "") + threads


def _row(result: CaseResult) -> dict[str, Any]:
    """A result for JSON; nmse is that of the worst output, null where none was compared."""
    worst = max(result.nmse.values(), default=math.nan)
    nmse = worst if math.isfinite(worst) else None
    return {"id": result.id, "status": result.status, "why": result.why, "nmse": nmse}


def _times(row: OpTime, top: Ceilings) -> dict[str, float | None]:
    if not row.seconds:
        return {}
    percent = 100 * row.flops_per_second / top.fma if top.fma else None
    return {
        "us": 1e6 * row.seconds,
        "gb_s": row.bytes_per_second / 1e9,
        "gflop_s": row.flops_per_second / 1e9,
        "percent_of_copy": 100 * row.bytes_per_second / top.copy,
        "percent_of_fma": percent,
    }


def _print_failure(result: CaseResult) -> None:
    if result.status == "failed":
        print(f"failed {result.id}: {result.why}", flush=True)


def _print_time(row: OpTime, top: Ceilings) -> None:
    _print_failure(row.result)
    if not row.seconds:
        return
    t = _times(row, top)
    fma = f"{t['percent_of_fma']:4.0f} %" if t["percent_of_fma"] is not None else ""
    rates = (
        f"{t['gb_s']:8.2f} GB/s {t['percent_of_copy']:4.0f} %  {t['gflop_s']:8.2f} GFLOP/s {fma}"
    )
    print(f"{t['us']:10.1f} us {rates}  {row.result.id}", flush=True)


def _print_rows(op: str, results: Sequence[CaseResult]) -> None:
    failed = [r for r in results if r.status == "failed"]
    for result in failed:
        _print_failure(result)
    passed = sum(r.status == "passed" for r in results)
    if failed:
        print(f"{op}: {len(failed)} of {passed + len(failed)} cases differ", flush=True)
    elif passed:
        print(f"{op}: the same bits in {passed} cases", flush=True)
    else:
        print(f"{op}: not checked, {results[0].why}", flush=True)


def _print_refusals(results: Sequence[CaseResult]) -> None:
    from ..bench.op_cases import refusals

    for reason, group in refusals(results).items():
        count = f"{len(group)} cases" if len(group) > 1 else group[0].id
        print(f"refused {reason} ({count})")


def _print_summary(title: str, results: Sequence[CaseResult]) -> None:
    from ..bench.op_cases import summary

    counts = summary(results)
    print(
        f"{title}: {counts['passed']} passed, {counts['failed']} failed, "
        f"{counts['refused']} refused, {counts['ops']} ops"
    )
    failed = [r.id for r in results if r.status == "failed"]
    if failed:
        print(f"one of them again: riverrun test-ops --case '{failed[0]}'")
