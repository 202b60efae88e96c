"""`riverrun convert`: a GGUF file from a Hugging Face checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from .misuse import misuse, usage_errors
from .parameters import command
from .writing import Force, Out, tell_size, writing

Folder: TypeAlias = Annotated[
    Path,
    typer.Argument(metavar="HF_DIR", help="Folder of config.json, safetensors and tokenizer."),
]
Outtype: TypeAlias = Annotated[
    str,
    typer.Option(
        "--outtype",
        metavar="T",
        help="Type of the matrices: f32, f16, bf16, q8_0, or auto, that of the checkpoint.",
    ),
]
Name: TypeAlias = Annotated[
    str | None,
    typer.Option("--name", metavar="TEXT", help="The model's name; the folder's by default."),
]
NoTokenizer: TypeAlias = Annotated[
    bool, typer.Option("--no-tokenizer", help="Write none: prompts are token ids.")
]
NoMtp: TypeAlias = Annotated[
    bool,
    typer.Option("--no-mtp", help="Leave out the block that predicts further tokens (MTP)."),
]
Pre: TypeAlias = Annotated[
    str | None,
    typer.Option("--pre", metavar="NAME", help="Name of the pre-tokenizer, where none is found."),
]


@command
def convert(
    folder: Folder,
    out: Out,
    outtype: Outtype = "auto",
    name: Name = None,
    force: Force = False,
    no_tokenizer: NoTokenizer = False,
    pre: Pre = None,
    no_mtp: NoMtp = False,
) -> None:
    """Write a GGUF file from a Hugging Face checkpoint."""
    from ..models.convert import OUTTYPES
    from ..models.convert import convert as write
    from ..models.tokenizer.pretokenizers import find_pretokenizer

    if outtype not in OUTTYPES:
        raise misuse(f"expected one of {', '.join(OUTTYPES)}, got {outtype!r}", "--outtype")
    with usage_errors("--pre"):
        find_pretokenizer(pre or "default", "pre")
    options: dict[str, Any] = dict(force=force, name=name or "", pre=pre or "")
    options |= dict(tokenizer=not no_tokenizer, mtp=not no_mtp)
    with writing(out) as progress:
        write(folder, out, outtype, progress=progress, **options)
    tell_size(out)
