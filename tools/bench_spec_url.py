"""`riverrun bench spec --url`: what drafts gain on a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass
from typing import Any

import typer

from ..graph.fields import DECLARED, Option, options_of
from .messages import complain, note_progress
from .misuse import misuse, usage_errors
from .parameters import Chosen


@dataclass(frozen=True)
class Server:
    """Whom to ask. name: of the model, "" for the first that is listed."""

    url: str
    api_key: str
    name: str


def refuse_local(groups: Iterable[Any], own: Mapping[str, tuple[object, object]]) -> None:
    """Raise typer.BadParameter for the first option that is about a model loaded here and was
    given. groups: dataclasses of options or what was chosen of them; own: values of other options
    with what they are when they are not given."""
    for group in groups:
        values = group.values if isinstance(group, Chosen) else vars(group)
        cls = group.cls if isinstance(group, Chosen) else type(group)
        for each, option in options_of(cls):
            if each.name in values and values[each.name] not in _unsaid(each, option):
                raise misuse("a server is asked (--url), which has its own", *option.names)
    for name, (value, absent) in own.items():
        if value != absent:
            raise misuse("a server is asked (--url), which has its own", name)


def _unsaid(each: Field[Any], option: Option) -> tuple[object, ...]:
    """What a field holds where its option is not given."""
    if option.absent is not DECLARED:
        return (option.absent, None)
    made = each.default_factory() if each.default_factory is not MISSING else each.default
    return (made, None)


def measure(
    server: Server, prompts: Mapping[str, str], n: int, repetitions: int, as_json: bool
) -> None:
    """Measure, print, and leave with 1 when texts differ. Raises ServerError."""
    from rich.console import Console

    from ..bench.serve_client import Client
    from ..bench.spec_report import WIDTH
    from ..bench.spec_serve import Pair, SpecServeBench, make_url_report, print_url_report

    with usage_errors({"url": ("--url",)}):
        client = Client(server.url, server.api_key)
    bench = SpecServeBench(client, prompts, n, repetitions, server.name)

    async def ask() -> list[Pair]:
        async with client:
            return await bench.run(lambda prompt, what: note_progress(f"{prompt}: {what}"))

    report = make_url_report(bench, asyncio.run(ask()))
    if as_json:
        print(json.dumps(report))
    else:
        console = Console()
        console.width = max(console.width, WIDTH)
        print_url_report(report, console)
    if not report["passed"]:
        failed = sum(row["equal"] is False for row in report["rows"])
        complain(f"{failed} of {len(report['rows'])} checks failed", "riverrun bench spec")
        raise typer.Exit(1)
