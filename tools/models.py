"""`riverrun models`: what was fetched from the Hugging Face Hub."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ..engine.sizes import mib
from ..models.hub import CachedModel, Hub
from .messages import note
from .misuse import misuse
from .options import Json

LIST, REMOVE = "list", "remove"
ACTION, NAME = f"{LIST}|{REMOVE}", "NAME"


def models(
    action: Annotated[str, typer.Argument(metavar=ACTION, help="What to do.")] = LIST,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar=NAME, help="Models to remove, as they are listed."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the models that were fetched from the Hugging Face Hub, or remove some of them."""
    if action not in (LIST, REMOVE):
        raise misuse(f"expected list or remove, got {action!r}", ACTION)
    if (action == REMOVE) != bool(names):
        want = "the names of models" if action == REMOVE else "no names"
        raise misuse(f"expected {want} behind {action}", NAME)
    hub = Hub()
    found = hub.cached() if action == LIST else [m for n in names or [] for m in hub.remove(n)]
    if as_json:
        print(json.dumps({"models": [_row(model) for model in found]}))
        return
    if not found:
        note("no model was fetched yet; -hf OWNER/NAME of `run` and `chat` fetches one")
    _print(found, "" if action == LIST else "removed ")


def _row(model: CachedModel) -> dict[str, Any]:
    return {"name": model.name, "bytes": model.nbytes, "path": str(model.path)}


def _print(found: Sequence[CachedModel], before: str) -> None:
    width = max((len(model.name) for model in found), default=0)
    for model in found:
        print(f"{before}{model.name:{width}}  {mib(model.nbytes)}  {model.path}")
