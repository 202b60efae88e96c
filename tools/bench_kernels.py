"""`riverrun bench kernels`: what products take on this processor, level by level."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import typer

from ..graph.fields import option
from .messages import note_progress
from .misuse import usage_errors
from .options import Json, integers
from .parameters import command

Columns: TypeAlias = Annotated[
    str, typer.Option("--columns", metavar="N,N,...", help="Rows of x, each a measurement.")
]


def _levels(text: str) -> tuple[str, ...]:
    from ..bench.levels import read_levels

    return read_levels(text)


def _ops(text: str) -> tuple[str, ...]:
    from ..bench.kernels import read_ops

    return read_ops(text)


def _types(text: str) -> tuple[str, ...]:
    from ..bench.apart import read_names
    from ..ops.mul_mat import WEIGHT_TYPES

    return read_names(text, WEIGHT_TYPES, "type")


@dataclass(frozen=True)
class Chosen:
    """Which products are measured, at which levels."""

    isa: tuple[str, ...] = option(
        (),
        "--isa",
        metavar="LEVEL[,LEVEL...]",
        help="Instruction-set levels of the processor, in turn, each in a process of its own.",
        shown="the highest, here",
        read=_levels,
    )
    op: tuple[str, ...] = option(
        ("mul_mat",),
        "--op",
        metavar="NAME[,NAME...]",
        help="Products: mul_mat, mul_mat_id.",
        shown="mul_mat",
        read=_ops,
    )
    type: tuple[str, ...] = option(
        (),
        "--type",
        metavar="TYPE[,TYPE...]",
        help="Types of weights.",
        shown="all that products take",
        read=_types,
    )


@command
def bench_kernels(
    chosen: Chosen,
    columns: Columns = "1,4,8,512",
    as_json: Json = False,
) -> None:
    """Measure the processor's products with one thread, by type of weights and instruction-set
    level: time, cycles and instructions of a block, and the share of what the core reaches."""
    from ..backends.cpu import instruction_sets
    from ..bench.kernels import asked_products, print_kernels, run_kernels
    from ..ops.mul_mat import WEIGHT_TYPES

    levels = chosen.isa or (instruction_sets()[-1],)
    asked = asked_products(
        chosen.op, chosen.type or WEIGHT_TYPES, integers("--columns", columns, least=1)
    )
    with usage_errors({"isa": ("--isa",)}):
        report = run_kernels(
            levels, asked, lambda one: note_progress(f"measuring {one.op} of {one.type}")
        )
    if as_json:
        print(json.dumps(report))
        return

    from rich.console import Console

    print_kernels(report, Console())
