"""`riverrun synth`: a model file of a real shape with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from .misuse import misuse, usage_errors
from .parameters import command
from .writing import Force, Out, tell_size, writing

Name: TypeAlias = Annotated[
    str, typer.Argument(metavar="SHAPE", help="Which model, such as qwen35-4b or tiny.")
]
Kind: TypeAlias = Annotated[
    str, typer.Argument(metavar="TYPE", help="Mix of types, such as Q4_K_M, Q8_0 or BF16.")
]
Mtp: TypeAlias = Annotated[
    bool, typer.Option("--mtp", help="With a block that predicts further tokens.")
]
Vocab: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--vocab",
        metavar="FILE",
        help="GGUF file whose tokenizer is copied; without one, prompts are token ids.",
    ),
]
Seed: TypeAlias = Annotated[
    int, typer.Option("--seed", metavar="N", min=0, max=2**32 - 1, help="Of the random numbers.")
]
Router: TypeAlias = Annotated[
    str,
    typer.Option(
        "--router",
        metavar="even|skewed",
        help="Experts are chosen about equally often, or a few of them for most tokens.",
    ),
]


@command
def synth(
    shape: Name,
    kind: Kind,
    out: Out,
    mtp: Mtp = False,
    vocab: Vocab = None,
    seed: Seed = 0,
    router: Router = "even",
    force: Force = False,
) -> None:
    """Write a model file of a real shape with random weights, for measuring."""
    from ..backends.cpu_blocks import BlockRecoder
    from ..models.quantizing import find_mix
    from ..models.synth import ROUTERS, find_shape, synthesize

    with usage_errors("SHAPE"):
        find_shape(shape)
    with usage_errors("TYPE"):
        mix = find_mix(kind)
    if router not in ROUTERS:
        raise misuse(f"expected one of {', '.join(ROUTERS)}, got {router!r}", "--router")
    with writing(out) as progress:
        synthesize(
            shape,
            mix,
            out,
            BlockRecoder(),
            mtp=mtp,
            vocab=vocab,
            seed=seed,
            router=router,
            force=force,
            progress=progress,
        )
    tell_size(out)
