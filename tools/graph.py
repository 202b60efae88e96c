"""`riverrun graph`: the graph of one step, with what runs it and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from .files import write_text
from .loading import Loading, load_model
from .misuse import misuse
from .parameters import Offer, command

if TYPE_CHECKING:
    from ..bench.profile import StepProfile

FORMATS = ("text", "dot", "html")
Tokens: TypeAlias = Annotated[
    int, typer.Option("--tokens", metavar="N", min=1, max=512, help="New tokens of the step.")
]
Sequences: TypeAlias = Annotated[
    int, typer.Option("--seqs", metavar="B", min=1, max=512, help="Sequences that they belong to.")
]
Format: TypeAlias = Annotated[
    str, typer.Option("--format", metavar="F", help=f"{', '.join(FORMATS)}.")
]
Output: TypeAlias = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="File.", show_default="standard output"),
]
Measure: TypeAlias = Annotated[
    bool, typer.Option("--measure", help="Run the step and add the median time of each node.")
]


@command
def graph(
    loading: Annotated[Loading, Offer(only=("model", "threads", "device"))],
    tokens: Tokens = 1,
    seqs: Sequences = 1,
    format: Format = "text",
    output: Output = None,
    measure: Measure = False,
) -> None:
    """Write the graph that a session runs for a step: shapes, kernels, bytes, operations, times."""
    if format not in FORMATS:
        raise misuse(f"expected one of {', '.join(FORMATS)}, got {format!r}", "--format")
    if seqs > tokens:
        raise misuse(f"each sequence needs a token, got {tokens} tokens", "--seqs")
    from .graph_notes import note_graph

    profile, name = _profile(loading, tokens, seqs, measure)
    noted = note_graph(profile, f"{name} on {profile.backend.name}")
    if format == "text":
        from .graph_notes import noted_text as render
    elif format == "dot":
        from .graph_dot import dot as render
    else:
        from .graph_page import page as render
    text = render(noted)
    if output is None:
        print(text, end="")
    else:
        write_text(output, text)


def _profile(loading: Loading, tokens: int, seqs: int, measure: bool) -> tuple[StepProfile, str]:
    """The step and the model's file name. Weights are laid out only to measure."""
    from ..bench.profile import measure_step, step_graph

    if measure:
        model = load_model(loading.model, loading.device, loading.threads)
        return measure_step(model, tokens, seqs), model.name

    import riverrun

    from ..backends import open_backend
    from ..models import load_file

    file = load_file(loading.model or riverrun.DEMO_MODEL)
    return step_graph(
        file, open_backend(loading.device, loading.threads), tokens, seqs
    ), file.path.name
