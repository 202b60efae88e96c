"""`riverrun bench spec`: what drafts gain, and that they change nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from ..engine.session_options import SessionOptions
from ..speculative import Speculation
from . import bench_spec_url
from .files import write_text
from .loading import Loading, load_asked
from .messages import complain, note_progress
from .misuse import misuse, usage_errors
from .options import MOST, Json
from .parameters import Chosen, Offer, command
from .speculation import MEASURED, Drafting

if TYPE_CHECKING:
    from ..bench.spec_rows import Report

Option = typer.Option
Count: TypeAlias = Annotated[
    int,
    Option("-n", "--n-predict", metavar="N", min=2, max=MOST, help="Tokens to generate a prompt."),
]
Prompts: TypeAlias = Annotated[
    str | None,
    Option("--prompts", metavar="NAME,...", help="Only these prompts.", show_default="all ten"),
]
Specs: TypeAlias = Annotated[
    str | None,
    Option(
        "--spec",
        metavar="KIND[+KIND],...",
        help="Drafters to measure, each by itself; + joins several.",
        show_default="ngram-mod, and mtp where the model has it",
    ),
]
Rollbacks: TypeAlias = Annotated[
    str, Option("--rollback", metavar="KIND,...", help="Rollback strategies to measure.")
]
Context: TypeAlias = Annotated[
    int | None,
    Option(
        "-c",
        "--ctx-size",
        metavar="CTX",
        min=1,
        max=MOST,
        help="Context size in tokens.",
        show_default="what the longest prompt needs",
    ),
]
Repetitions: TypeAlias = Annotated[
    int,
    Option("-r", "--repetitions", metavar="R", min=1, max=MOST, help="Of each, taking turns."),
]
Keep: TypeAlias = Annotated[
    bool, Option("--keep-drafters", help="Drafters remember earlier prompts and repetitions.")
]
Synthetic: TypeAlias = Annotated[
    str | None,
    Option(
        "--synthetic-acceptance",
        metavar="P[,P,...]",
        help="Keep drafts by the toss of a coin, a chance for each place in the draft.",
    ),
]
Plot: TypeAlias = Annotated[
    Path | None, Option("--plot", metavar="FILE.html", help="Also draw it, as one HTML page.")
]

Url: TypeAlias = Annotated[
    str | None,
    Option("--url", metavar="URL", help="Measure this server instead, with or without /v1."),
]
Key: TypeAlias = Annotated[str, Option("--api-key", metavar="KEY", help="Sent to the server.")]
Name: TypeAlias = Annotated[
    str,
    Option(
        "--served-model",
        metavar="NAME",
        help="The server's model.",
        show_default="the first listed",
    ),
]


@command
def bench_spec(
    loading: Loading,
    drafts: Annotated[Chosen[Speculation], Offer(only=(*MEASURED, "adaptive"))],
    session: Annotated[Chosen[SessionOptions], Offer(only=("n_rs_seq",))],
    n: Count = 192,
    prompts: Prompts = None,
    spec: Specs = None,
    rollback: Rollbacks = "auto",
    ctx: Context = None,
    repetitions: Repetitions = 1,
    keep_drafters: Keep = False,
    synthetic_acceptance: Synthetic = None,
    plot: Plot = None,
    url: Url = None,
    api_key: Key = "",
    served_model: Name = "",
    as_json: Json = False,
) -> None:
    """Measure speculative decoding against plain decoding, each figure beside a check that the
    tokens are the same; exit with 1 when a check fails."""
    from ..bench.spec import DEFAULTS, Options, SpecBench, default_chains
    from ..bench.spec_rows import make_report

    chosen = _prompts(prompts)
    if url is not None:
        own: dict[str, tuple[object, object]] = {
            "--spec": (spec, None),
            "--rollback": (rollback, "auto"),
            "-c": (ctx, None),
            "--keep-drafters": (keep_drafters, False),
            "--synthetic-acceptance": (synthetic_acceptance, None),
            "--plot": (plot, None),
        }
        bench_spec_url.refuse_local((loading, drafts, session), own)
        server = bench_spec_url.Server(url, api_key, served_model)
        bench_spec_url.measure(server, chosen, n, repetitions, as_json)
        return
    if api_key or served_model:
        raise misuse("there is no server; add --url", "--api-key" if api_key else "--served-model")
    asked = Drafting(drafts, session, loading)
    n_rs_seq = session.values.get("n_rs_seq")
    chains = _chains(spec)
    rates = _rates(synthetic_acceptance)
    options = Options(n, repetitions, _names(rollback), n_rs_seq, ctx, keep_drafters, rates)
    for chain in chains or DEFAULTS:
        for name in options.rollbacks:
            asked.having(chain, rollback=name).check()
    every = tuple(dict.fromkeys(kind for chain in chains or DEFAULTS for kind in chain))
    offload = asked.having(every).offload(ctx)
    if plot and (plot.is_dir() or not plot.parent.is_dir()):
        raise misuse(f"{plot} cannot be written; check the path", "--plot")
    loaded = load_asked(loading, offload)
    chains = chains or default_chains(loaded)
    bench = SpecBench(loaded, chosen, _speculations(chains, asked), options)
    results = bench.run(lambda prompt, runner: note_progress(f"{prompt}: {runner}"))
    report = make_report(bench, results)
    _publish(report, plot, as_json)
    if not report["passed"]:
        failed = sum(not row["passed"] for row in report["rows"])
        complain(f"{failed} of {len(report['rows'])} checks failed", "riverrun bench spec")
        raise typer.Exit(1)


def _prompts(names: str | None) -> dict[str, str]:
    """The prompts of --prompts."""
    from ..bench.spec_prompts import choose_prompts

    with usage_errors("--prompts"):
        return choose_prompts(_names(names or ""))


def _names(text: str) -> tuple[str, ...]:
    """The parts of "NAME,NAME,...", each once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(","))) if text else ()


def _chains(spec: str | None) -> list[tuple[str, ...]]:
    """The drafters of each measurement; none without --spec."""
    if spec is None:
        return []
    chains = [tuple(kind.strip() for kind in chain.split("+")) for chain in spec.split(",")]
    if any("" in chain for chain in chains):
        raise misuse(f"a name is missing in {spec!r}", "--spec")
    if any("none" in chain for chain in chains):
        raise misuse("none is measured always; name drafters", "--spec")
    return list(dict.fromkeys(chains))


def _rates(text: str | None) -> tuple[float, ...] | None:
    """The chances of --synthetic-acceptance."""
    if text is None:
        return None
    try:
        rates = tuple(float(part) for part in text.split(","))
    except ValueError:
        rates = ()
    if not rates or not all(0.0 <= rate <= 1.0 for rate in rates):
        raise misuse(
            f"expected numbers from 0 to 1 separated by commas, got {text!r}",
            "--synthetic-acceptance",
        )
    return rates


def _speculations(chains: Sequence[tuple[str, ...]], asked: Drafting) -> list[Speculation]:
    """A speculation for each chain; a draft model that one of them needs is loaded once."""
    first = next((chain for chain in chains if "draft" in chain), chains[0])
    opened = asked.having(first).open()
    assert opened is not None
    return [replace(opened, kinds=chain) for chain in chains]


def _publish(report: Report, plot: Path | None, as_json: bool) -> None:
    from rich.console import Console

    from ..bench.spec_plot import page
    from ..bench.spec_report import WIDTH, print_spec_report

    if plot:
        write_text(plot, page(report))
    if as_json:
        print(json.dumps(report))
        return
    console = Console()
    console.width = max(console.width, WIDTH)
    print_spec_report(report, console)
