"""`riverrun bench serve`: how a server does under load."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, TypeAlias

import typer

from ..bench.serve import Load
from .messages import complain, note_progress
from .misuse import usage_errors
from .options import Json
from .parameters import command

Option = typer.Option
Url: TypeAlias = Annotated[
    str, Option("--url", metavar="URL", help="The server, with or without /v1.")
]
Key: TypeAlias = Annotated[str, Option("--api-key", metavar="KEY", help="Sent to the server.")]
Name: TypeAlias = Annotated[
    str,
    Option("--served-model", metavar="NAME", help="Model to ask.", show_default="the first listed"),
]
Timeout: TypeAlias = Annotated[
    float,
    Option(
        "--timeout",
        metavar="S",
        min=0.001,
        help="Seconds without a sign of life after which a request has failed.",
    ),
]
FirstSlo: TypeAlias = Annotated[
    float | None,
    Option("--slo-ttft", metavar="MS", min=0, help="Good answers begin within this time."),
]
GapSlo: TypeAlias = Annotated[
    float | None,
    Option("--slo-gap", metavar="MS", min=0, help="Good answers have no longer gap than this."),
]


@command
def bench_serve(
    url: Url,
    load: Load,
    served_model: Name = "",
    api_key: Key = "",
    timeout: Timeout = 600.0,
    slo_ttft: FirstSlo = None,
    slo_gap: GapSlo = None,
    as_json: Json = False,
) -> None:
    """Measure an OpenAI-compatible server under load: times to the first token, gaps between
    tokens, tokens per second; exit with 1 when a request fails."""
    from rich.console import Console

    from ..bench.serve import Measured, ServeBench
    from ..bench.serve_client import Client
    from ..bench.serve_report import WIDTH, Slo, make_report, print_serve_report

    with usage_errors({"url": ("--url",)}):
        client = Client(url, api_key, timeout)

    async def measure() -> Measured:
        async with client:
            return await ServeBench(client, load, served_model).run(
                lambda done, failed: note_progress(f"{done} answers, {failed} errors")
            )

    report = make_report(client.url, load, asyncio.run(measure()), Slo(slo_ttft, slo_gap))
    if as_json:
        print(json.dumps(report))
    else:
        console = Console()
        console.width = max(console.width, WIDTH)
        print_serve_report(report, console)
    if report["failed"]:
        complain(
            f"{report['failed']} of {report['requests']} requests failed", "riverrun bench serve"
        )
        raise typer.Exit(1)
