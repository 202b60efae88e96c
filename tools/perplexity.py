"""`riverrun perplexity`: how well a model predicts a text."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from .files import read_text
from .loading import Loading, load_asked
from .messages import note, note_progress
from .misuse import misuse
from .options import MOST, Json
from .parameters import REQUIRED, Offer, command

if TYPE_CHECKING:
    from ..bench.perplexity import Estimate

Text: TypeAlias = Annotated[Path, typer.Argument(metavar="FILE", help="Text file, UTF-8.")]
Context: TypeAlias = Annotated[
    int, typer.Option("-c", "--ctx-size", metavar="CTX", min=4, max=MOST, help="Tokens of a chunk.")
]
Chunks: TypeAlias = Annotated[
    int, typer.Option("--chunks", metavar="N", min=-1, max=MOST, help="Chunks to score; -1: all.")
]
Sequences: TypeAlias = Annotated[
    int, typer.Option("--seqs", metavar="N", min=1, max=64, help="Chunks scored side by side.")
]


@command
def perplexity(
    loading: Annotated[
        Loading,
        Offer(without=("draft_head",), changed={"model": {"absent": REQUIRED, "shown": ""}}),
    ],
    file: Text,
    ctx: Context = 512,
    chunks: Chunks = -1,
    seqs: Sequences = 1,
    as_json: Json = False,
) -> None:
    """Cut a text into chunks and score the second half of each."""
    from ..bench.perplexity import Perplexity, cut

    if chunks == 0:
        raise misuse("expected 1 or more, or -1 for all, got 0", "--chunks")
    # A cache of all sequences is what has to fit beside the layers.
    offload = loading.offload(ctx * seqs)
    text = read_text(file, "FILE")
    loaded = load_asked(loading, offload)
    parts = cut(loaded, text, ctx, chunks)
    measured = Perplexity(loaded, ctx, min(seqs, len(parts)))

    def tell(so_far: Estimate) -> None:
        note_progress(f"{so_far.chunks} of {len(parts)} chunks: {so_far.perplexity:.4f}")

    began = time.perf_counter()
    result = measured.run(parts, tell)
    seconds = time.perf_counter() - began
    if as_json:
        print(json.dumps({**measured.report(result), "seconds": seconds}))
        return
    span = measured.span
    print(
        f"perplexity {result.perplexity:.4f} +/- {result.perplexity_error:.4f}\n"
        f"{result.tokens} tokens scored, numbers {span.first} to {span.last} (from 0) of each of "
        f"{result.chunks} chunks of {ctx}"
    )
    note(f"{loaded.name} on {loaded.device} | {len(parts) * (ctx - 1) / seconds:.1f} t/s")
