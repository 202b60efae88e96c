"""Options that name models of the Hugging Face Hub, which are fetched before they are loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..graph.fields import option
from ..models.hub import Hub, Wanted
from .misuse import misuse

METAVAR = "OWNER/NAME[:QUANT]"


@dataclass(frozen=True)
class FromHub:
    """Repositories in the place of files."""

    model: Wanted | None = option(
        None,
        "-hf",
        "--hf-repo",
        metavar=METAVAR,
        help="Model of the Hugging Face Hub, instead of MODEL; fetched where it is not there yet. "
        "QUANT: Q4_K_M, else Q8_0, else the first file, unless given.",
        read=Wanted.read,
    )
    draft: Wanted | None = option(
        None,
        "-hfd",
        "--draft-hf",
        metavar=METAVAR,
        help="The same, instead of --draft-model.",
        read=Wanted.read,
    )

    def check(self, model: Path | None, draft_model: Path | None) -> None:
        """Raise typer.BadParameter where a file is given, too."""
        if self.model and model:
            raise misuse(f"give it or MODEL ({model}), not both", "-hf")
        if self.draft and draft_model:
            raise misuse("give it or --draft-model, not both", "--draft-hf")

    def fetched(self, wanted: Wanted | None) -> Path | None:
        """The file of a model of the Hub, None for none. Raises what `Hub.fetch` raises."""
        return Hub().fetch(wanted) if wanted else None
