"""`riverrun bench`: how fast a model runs here."""

from __future__ import annotations

import json
from typing import Annotated, TypeAlias

import typer

from .loading import Loading, load_asked
from .messages import note_progress
from .misuse import misuse
from .options import MOST, Json, integers
from .parameters import Offer, command

Sizes: TypeAlias = Annotated[
    str, typer.Option("-p", metavar="N,N,...", help="Tokens per pass, each a test of its own.")
]
Decode: TypeAlias = Annotated[
    int,
    typer.Option("-n", metavar="N", min=0, max=MOST, help="Tokens to decode one by one; 0: none."),
]
Repetitions: TypeAlias = Annotated[
    int,
    typer.Option("-r", metavar="R", min=1, max=MOST, help="Repetitions, after one that warms up."),
]
Context: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "-c",
        "--ctx-size",
        metavar="CTX",
        min=1,
        max=MOST,
        help="Context size in tokens.",
        show_default="what the longest test needs",
    ),
]
WithPeer: TypeAlias = Annotated[
    bool, typer.Option("--peer", help="Run ik_llama.cpp on the same file beside it.")
]


@command
def bench(
    loading: Annotated[Loading, Offer(without=("draft_head", "normalize"))],
    sizes: Sizes = "1,8,512",
    n: Decode = 64,
    repetitions: Repetitions = 5,
    ctx: Context = None,
    peer: WithPeer = False,
    as_json: Json = False,
) -> None:
    """Measure tokens per second of passes and of decoding, and the memory bandwidth reached.

    `riverrun bench spec` measures speculative decoding instead; a model file of that name is
    ./spec."""
    from ..bench.report import print_report, run_report
    from ..bench.throughput import make_tests

    tests = make_tests(integers("-p", sizes, least=1), n)
    need = max(test.context for test in tests)
    if ctx is not None and ctx < need:
        raise misuse(f"these tests need {need} tokens, got {ctx}", "-c")
    offload = loading.offload(ctx or need)
    loaded = load_asked(loading, offload)
    report = run_report(
        loaded,
        tests,
        repetitions,
        ctx,
        peer,
        lambda test: note_progress(f"measuring {test.name} {test.n}"),
    )
    if as_json:
        print(json.dumps(report))
        return

    from rich.console import Console

    print_report(report, Console())
