"""`riverrun bench`: how fast a model runs here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from ..engine.session_options import CACHE_TYPES
from ..graph.fields import option
from .loading import Loading, load_asked
from .messages import note, note_progress
from .misuse import misuse
from .options import MOST, Json, integers, read_sizes
from .parameters import Offer, command

if TYPE_CHECKING:
    from ..bench.report import Beside

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


def _levels(text: str) -> tuple[str, ...]:
    from ..bench.levels import read_levels

    return read_levels(text)


def _peers(text: str) -> tuple[str, ...]:
    from ..bench.peers import read_peers

    return read_peers(text)


@dataclass(frozen=True)
class Rivals:
    """What runs beside the model, or in its place."""

    isa: tuple[str, ...] = option(
        (),
        "--isa",
        metavar="LEVEL[,LEVEL...]",
        help="Instruction-set levels of the processor to run beside one another, in turn, each in "
        "a process of its own.",
        shown="the highest, here",
        read=_levels,
    )
    peer: bool = option(
        False,
        "--peer",
        help="Run the other engines that are installed (ik_llama.cpp, llama.cpp) on the same file "
        "beside it.",
    )
    peers: tuple[str, ...] = option(
        (),
        "--peers",
        metavar="NAME[,NAME...]",
        help="Run these of them.",
        read=_peers,
    )

    def beside(self) -> Beside:
        """The peers. Raises BackendError where one that was named, or every one, is not here."""
        from ..bench.peers import check_installed, installed
        from ..bench.report import Beside

        if self.peer or self.peers:
            check_installed(self.peers)
        named = self.peers or (installed() if self.peer else ())
        return Beside(named, whatever=not self.peers, tell=note)


def _cache_types(text: str) -> tuple[str, ...]:
    from ..bench.apart import read_names

    return read_names(text, CACHE_TYPES, "type")


@dataclass(frozen=True)
class Further:
    """What is measured besides, by an engine."""

    prompts: tuple[int, ...] = option(
        (),
        "--prompts",
        metavar="N,N,...",
        help="Prompts of so many tokens as requests have them, up to the first token.",
        read=read_sizes,
    )
    depth: tuple[int, ...] = option(
        (),
        "--depth",
        metavar="N,N,...",
        help="Decode behind contexts of so many tokens, too.",
        read=read_sizes,
    )
    cache_types: tuple[str, ...] = option(
        ("f16",),
        "--cache-types",
        metavar="T,T,...",
        help="Decode with these element types of cached keys and values.",
        read=_cache_types,
        shown="f16",
    )


@command
def bench(
    loading: Annotated[Loading, Offer(without=("draft_head", "normalize"))],
    sizes: Sizes = "1,8,512",
    n: Decode = 64,
    repetitions: Repetitions = 5,
    ctx: Context = None,
    *,
    rivals: Rivals,
    further: Further,
    as_json: Json = False,
) -> None:
    """Measure tokens per second of passes and of decoding, and the memory bandwidth reached.

    `riverrun bench spec` measures speculative decoding instead; a model file of that name is
    ./spec."""
    from ..bench.throughput import make_tests

    tests = make_tests(
        integers("-p", sizes, least=1), n, further.depth, further.cache_types, further.prompts
    )
    need = max(test.context for test in tests)
    if ctx is not None and ctx < need:
        raise misuse(f"these tests need {need} tokens, got {ctx}", "-c")
    options = {
        "tests": tests,
        "repetitions": repetitions,
        "n_ctx": ctx,
        "beside": rivals.beside(),
        "progress": lambda test: note_progress(f"measuring {test.name} {test.n}"),
    }
    report = _of_levels(loading, rivals.isa, options) if rivals.isa else _of_model(loading, options)
    if as_json:
        print(json.dumps(report))
        return

    from rich.console import Console

    from ..bench.report import print_report

    print_report(report, Console())


def _of_model(loading: Loading, options: dict[str, Any]) -> dict[str, Any]:
    from ..bench.report import run_report

    need = options["n_ctx"] or max(test.context for test in options["tests"])
    return run_report(load_asked(loading, loading.offload(need)), **options)


def _of_levels(
    loading: Loading, levels: tuple[str, ...], options: dict[str, Any]
) -> dict[str, Any]:
    """Raises typer.BadParameter for another device than the processor."""
    import riverrun

    from ..backends.processors import usable_threads
    from ..bench.report import run_levels

    if loading.device not in ("auto", "cpu"):
        raise misuse(f"levels are those of the device cpu, got {loading.device}", "--isa")
    path = loading.model or Path(riverrun.DEMO_MODEL)
    threads = usable_threads(loading.threads)
    return run_levels(path, levels, threads, load=loading.load, **options)
