"""Options that several subcommands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

ModelPath: TypeAlias = Annotated[
    Path | None,
    typer.Argument(metavar="MODEL", help="GGUF file.", show_default="the bundled demo model"),
]
Threads: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "-t",
        "--threads",
        metavar="THREADS",
        min=1,
        help="Processor threads, up to one for each processor.",
        show_default="the physical cores that affinity and the cgroup quota allow",
    ),
]
DeviceName: TypeAlias = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="D[,D]",
        help="auto, or names that `devices` lists, commas between; earlier ones go first.",
    ),
]
GpuLayers: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--gpu-layers",
        metavar="N|auto",
        help="How many of the last layers run on the cards, the head counting as one; auto: as "
        "many as fit. The others run on the processor.",
        show_default="all",
    ),
]
Json: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output.")
]


def integers(option: str, text: str, least: int) -> list[int]:
    """The numbers of "ID,ID,...". Raises typer.BadParameter naming the option."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < least:
        raise typer.BadParameter(
            f"expected integers >= {least} separated by commas, got {text!r}", param_hint=option
        )
    return numbers


def gpu_layers(text: str | None) -> int | str | None:
    """What --gpu-layers asks for. Raises typer.BadParameter."""
    if text is None or text == "auto":
        return text
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise typer.BadParameter(
            f"expected a number of 0 or more, or auto, got {text!r}", param_hint="--gpu-layers"
        )
    return number
