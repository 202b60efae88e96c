"""`riverrun bench batch`: how fast many requests at once decode here."""

from __future__ import annotations

import json
from typing import Annotated, TypeAlias

import typer

from .loading import Loading, load_asked
from .messages import note
from .options import MOST, Json, integers
from .parameters import Offer, command

Counts: TypeAlias = Annotated[
    str, typer.Option("--requests", metavar="N,N,...", help="Requests at once, each a row.")
]
Decode: TypeAlias = Annotated[
    int, typer.Option("-n", metavar="N", min=1, max=MOST, help="Tokens to decode a request.")
]
Repetitions: TypeAlias = Annotated[
    int, typer.Option("-r", metavar="R", min=1, max=MOST, help="Repetitions of each row.")
]
Penalised: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--penalised", help="With a repeat penalty and a stop text, so that the host chooses."
    ),
]


@command
def bench_batch(
    loading: Annotated[Loading, Offer(without=("draft_head", "normalize"))],
    requests: Counts = "1,4,8,16",
    n: Decode = 64,
    repetitions: Repetitions = 5,
    penalised: Penalised = False,
    as_json: Json = False,
) -> None:
    """Measure tokens per second of several requests that decode at once, beside what bare passes of
    as many rows give in the same run, and the time that a step spends outside its passes."""
    from ..bench.batch import BatchBench

    counts = integers("--requests", requests, least=1)
    loaded = load_asked(loading)
    options: dict[str, object] = {"temperature": 0.0}
    if penalised:
        options |= {"repeat_penalty": 1.1, "stop": ["\x00never"]}
    rows = BatchBench(loaded, n, options).run(counts, repetitions)
    if as_json:
        print(json.dumps({"model": loaded.name, "device": loaded.device, "results": rows}))
        return
    note(f"{loaded.name} on {loaded.device}, {n} tokens a request, median of {repetitions}")
    print(f"{'requests':>8} {'t/s':>9} {'of bare passes':>15} {'Python us/step':>15} {'busy':>7}")
    for row in rows:
        python = "hidden" if row["python_us"] is None else f"{row['python_us']:.0f}"
        busy = "" if row["busy"] is None else f"{row['busy']:.1%}"
        share = f"{row['share']:.1%}"
        print(f"{row['requests']:8} {row['t_s']:9.1f} {share:>15} {python:>15} {busy:>7}")
