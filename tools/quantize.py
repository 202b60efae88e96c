"""`riverrun quantize`: a model file with its weights in fewer bits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from .loading import Loading
from .messages import note
from .misuse import misuse, usage_errors
from .parameters import Offer, command
from .writing import Force, Out, writing

if TYPE_CHECKING:
    from ..models.gguf import GgufFile
    from ..models.quantizing import Step

Source: TypeAlias = Annotated[
    Path, typer.Argument(metavar="IN", help="GGUF file, or the first of its shards.")
]
Kind: TypeAlias = Annotated[
    str, typer.Argument(metavar="TYPE", help="Mix of types, such as Q4_K_M, Q6_K or Q8_0.")
]
Matrix: TypeAlias = Annotated[
    Path | None,
    typer.Option("--imatrix", metavar="FILE", help="Importance matrix that weighs errors."),
]
TensorType: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--tensor-type",
        metavar="REGEX=TYPE",
        help="Type of the tensors in whose names it is found; the first one counts. Repeatable.",
    ),
]
DryRun: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Print each tensor's type and the size, and write none.")
]
Requantize: TypeAlias = Annotated[
    bool, typer.Option("--allow-requantize", help="Take tensors that are quantised already.")
]


@command
def quantize(
    source: Source,
    out: Out,
    kind: Kind,
    loading: Annotated[Loading, Offer(only=("threads",))],
    imatrix: Matrix = None,
    tensor_type: TensorType = None,
    dry_run: DryRun = False,
    allow_requantize: Requantize = False,
    force: Force = False,
) -> None:
    """Write a model file with its weights in fewer bits."""
    from ..backends.cpu_blocks import BlockRecoder
    from ..models import quantizing
    from ..models.gguf import open_gguf

    with usage_errors("TYPE"):
        mix = quantizing.find_mix(kind)
    overrides = [_override(text) for text in tensor_type or ()]
    file = open_gguf(source)
    importance = quantizing.load_importance(imatrix) if imatrix else None
    with usage_errors("--tensor-type"):
        steps = quantizing.plan(file, mix, overrides, importance is not None)
        _check_encoders(steps)
    _check_decoders(file, steps)
    if dry_run:
        quantizing.check_importance(mix, steps, importance)
        print("\n".join(_table(steps)))
        return
    if out.exists() and source.exists() and out.samefile(source):
        raise misuse("expected another file than IN", "OUT")
    with writing(out) as progress:
        quantizing.quantize(
            file,
            out,
            mix,
            steps,
            BlockRecoder(loading.threads),
            importance=importance,
            allow_requantize=allow_requantize,
            force=force,
            progress=progress,
        )
    other = sum(step.odd for step in steps)
    if other:
        note(f"{other} tensors have rows that are no blocks, and so other types (see --dry-run)")
    note(f"{out}: {_summary(steps)}")


def _override(text: str) -> tuple[str, str]:
    expression, equals, kind = text.rpartition("=")
    if not equals or not expression or not kind:
        raise misuse(f"expected REGEX=TYPE, such as ffn_down=q6_k, got {text!r}", "--tensor-type")
    return expression, kind


def _check_encoders(steps: list[Step]) -> None:
    from ..backends.cpu_blocks import can_encode
    from ..graph.errors import RequestError

    for step in steps:
        if step.to != step.tensor.dtype and not can_encode(step.to):
            raise RequestError(
                f"{step.tensor.name}: {step.to.name} has no encoder here; choose another type"
            )


def _check_decoders(file: GgufFile, steps: list[Step]) -> None:
    from ..backends.cpu_blocks import can_decode
    from ..graph.errors import ModelError
    from ..graph.unread_types import REFUSED

    for step in steps:
        kind = step.tensor.dtype
        if step.to != kind and not can_decode(kind):
            why = REFUSED.get(kind.name, "it has no decoder here")
            raise ModelError(f"{file.path}: {step.tensor.name} is {kind.name}: {why}")


def _table(steps: list[Step]) -> list[str]:
    """A line for each tensor, and the sizes of both files."""
    rows = [
        (
            step.tensor.name,
            " x ".join(map(str, step.tensor.shape)),
            step.tensor.dtype.name,
            step.to.name,
            f"{step.nbytes}",
            f"({step.note})" if step.note else "",
        )
        for step in steps
    ]
    widths = [max(len(row[i]) for row in rows) if rows else 0 for i in range(5)]
    lines = [
        " ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[5]]).rstrip()
        for row in rows
    ]
    return [*lines, _summary(steps)]


def _summary(steps: list[Step]) -> str:
    before, after = sum(s.tensor.nbytes for s in steps), sum(s.nbytes for s in steps)
    values = sum(_count(step) for step in steps)
    bits = 8 * after / values if values else 0.0
    return f"{before:,} -> {after:,} bytes of tensors, {bits:.2f} bits a weight"


def _count(step: Step) -> int:
    kind = step.tensor.dtype
    return step.tensor.nbytes // kind.nbytes * kind.block
