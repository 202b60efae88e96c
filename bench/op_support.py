"""Which backend takes how many cases of which op."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..backends import Backend
from ..backends.harness import outline
from ..graph import OPS
from .op_cases import registered_cases

Table = dict[str, dict[str, int]]


def support_table(backends: Iterable[Backend], names: Sequence[str] | None = None) -> Table:
    """op -> {"cases": how many it has, backend's name: how many of them that takes}.

    Cases for measuring count too. Raises RequestError for a name that no op has."""
    opened = list(backends)
    table: Table = {n: {"cases": 0} | {b.name: 0 for b in opened} for n in names or sorted(OPS)}
    for case in registered_cases(names):
        row, node = table[case.op.name], outline(case)
        row["cases"] += 1
        for backend in opened:
            row[backend.name] += backend.supports(node).ok
    return table


def losses(before: Table, now: Table) -> list[str]:
    """What was supported and is no longer: ops that are gone, and counts that fell."""
    lost = []
    for op, row in before.items():
        if op not in now:
            lost.append(f"{op} is gone")
            continue
        for name, count in row.items():
            if now[op].get(name, 0) < count:
                lost.append(f"{op}: {name} {count}, now {now[op].get(name, 0)}")
    return lost


def kernel_levels(backend: Backend) -> dict[str, list[str]]:
    """op -> the instruction sets that it has kernels for, lowest first; empty where a backend's
    ops are not made of kernels."""
    rows = sorted(backend.kernels, key=lambda k: k["priority"])
    levels: dict[str, list[str]] = {}
    for row in rows:
        found = levels.setdefault(row["op"], [])
        if row["isa"] not in found:
            found.append(row["isa"])
    return levels
