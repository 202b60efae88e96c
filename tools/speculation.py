"""Options of speculative decoding, and what they make together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from .loading import load_model

if TYPE_CHECKING:
    from ..engine import Model
    from ..engine.offload import Offload
    from ..speculative import Speculation

Option = typer.Option
Spec: TypeAlias = Annotated[
    str | None,
    Option(
        "--spec",
        metavar="KIND[,KIND]",
        help="Drafters: ngram-simple, ngram-map-k, ngram-map-k4v, ngram-mod, ngram-cache, draft, "
        "mtp; or none.",
        show_default="none",
    ),
]
DraftModelPath: TypeAlias = Annotated[
    Path | None, Option("--draft-model", metavar="FILE", help="GGUF file for --spec draft.")
]
DraftMax: TypeAlias = Annotated[
    int | None,
    Option(
        "--draft-max",
        metavar="N",
        help="Most drafts of a round.",
        show_default="each drafter's own",
    ),
]
DraftMin: TypeAlias = Annotated[
    int, Option("--draft-min", metavar="N", help="Propose no fewer drafts than this.")
]
PMin: TypeAlias = Annotated[
    float,
    Option("--p-min", metavar="P", help="Model drafters stop before a less likely token."),
]
Rollback: TypeAlias = Annotated[
    str,
    Option(
        "--rollback",
        metavar="KIND",
        help="How recurrent state forgets drafts: auto, replay, snapshots, checkpoint:host, "
        "checkpoint:device.",
    ),
]
NRsSeq: TypeAlias = Annotated[
    int | None,
    Option(
        "--n-rs-seq",
        metavar="N",
        min=0,
        help="Most tokens that recurrent state can forget.",
        show_default="the longest draft",
    ),
]
NoAdaptive: TypeAlias = Annotated[
    bool, Option("--no-adaptive", help="Always draft at full length, whether it pays or not.")
]
Acceptance: TypeAlias = Annotated[
    str,
    Option("--acceptance", metavar="RULE", help="match, or rejection (for draft and mtp)."),
]
DraftHead: TypeAlias = Annotated[
    int,
    Option(
        "--draft-head",
        metavar="N",
        help="mtp chooses among the first N tokens of the vocabulary; 0: among all.",
    ),
]
LookupStatic: TypeAlias = Annotated[
    Path | None,
    Option("--lookup-cache-static", metavar="FILE", help="Counts of pairs for ngram-cache."),
]
LookupDynamic: TypeAlias = Annotated[
    Path | None,
    Option(
        "--lookup-cache-dynamic",
        metavar="FILE",
        help="Counts for ngram-cache, read if there and written in the end.",
    ),
]


@dataclass(frozen=True)
class Asked:
    """The options as given."""

    spec: str | None = None
    draft_model: Path | None = None
    draft_max: int | None = None
    draft_min: int = 0
    p_min: float = 0.0
    rollback: str = "auto"
    n_rs_seq: int | None = None
    no_adaptive: bool = False
    acceptance: str = "match"
    draft_head: int = 0
    lookup_static: Path | None = None
    lookup_dynamic: Path | None = None

    @property
    def kinds(self) -> tuple[str, ...]:
        """The drafters' names; none without --spec."""
        named = tuple(kind.strip() for kind in (self.spec or "none").split(","))
        return () if named == ("none",) else named

    def check(self) -> None:
        """Raise typer.BadParameter for what is wrong before any file is opened."""
        from ..engine.memory import check_rollback
        from ..graph.errors import RequestError

        try:
            check_rollback(self.rollback)
            if self.kinds:
                self._speculation(None)
        except RequestError as error:
            raise typer.BadParameter(str(error)) from None
        if "draft" in self.kinds and self.draft_model is None:
            raise typer.BadParameter("needed by --spec draft", param_hint="--draft-model")

    def open(self, device: str, threads: int | None) -> Speculation | None:
        """The speculation that a generation is to use. Raises what loading a model raises."""
        if not self.kinds:
            return None
        path = self.draft_model if "draft" in self.kinds else None
        return self._speculation(load_model(path, device, threads) if path else None)

    def session_options(self) -> dict[str, Any]:
        """What a session needs for it. Without drafts and without a number of tokens to go back
        by, the model's backend decides that number."""
        options: dict[str, Any] = {"rollback": self.rollback}
        if self.n_rs_seq is not None:
            options["n_rs_seq"] = self.n_rs_seq
        elif self.kinds:
            options["n_rs_seq"] = self._speculation(None).longest
        return options

    def offload(self, layers: int | str | None, ctx: int | None) -> Offload:
        """Which layers go to cards, with room for rollback and for a draft model beside them."""
        from ..engine.offload import Offload

        plain = Offload(layers, ctx, self.session_options().get("n_rs_seq", 0))
        if "draft" not in self.kinds or self.draft_model is None or layers != "auto":
            return plain
        draft = self.draft_model.stat().st_size if self.draft_model.exists() else 0
        return replace(plain, reserve=plain.reserve + draft)

    def _speculation(self, draft_model: Model | None) -> Speculation:
        from ..speculative import Speculation

        return Speculation(
            self.kinds,
            self.draft_max,
            self.draft_min,
            self.p_min,
            draft_model,
            self.acceptance,
            adaptive=not self.no_adaptive,
            draft_head=self.draft_head > 0,
            lookup_static=self.lookup_static,
            lookup_dynamic=self.lookup_dynamic,
        )
