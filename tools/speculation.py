"""What the options of speculative decoding make together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engine.session_options import SessionOptions
from ..graph.fields import options_of
from ..graph.plugins import DRAFTERS, load_plugins
from ..speculative import Speculation
from .constraints import Constraining
from .hub import FromHub
from .loading import Loading, load_asked, load_model
from .messages import note
from .misuse import misuse
from .parameters import Chosen, Offer

if TYPE_CHECKING:
    from ..engine import Model, Session
    from ..engine.constraints import Constraint
    from ..engine.offload import Offload


# What commands that run one text at a time offer of a session.
ONE_TEXT = Offer(without=("n_ctx_total",))
# What `spec check` and `bench spec` offer of it: drafts stay by `match`, and files of counts would
# make their runs depend on earlier ones.
MEASURED = ("draft_model", "draft_max", "draft_min", "p_min")


class Ready(NamedTuple):
    """A loaded model and what generations over it use."""

    model: Model
    session: Session
    speculation: Speculation | None
    constraint: Constraint | None


@dataclass(frozen=True)
class Drafting:
    """The options as given."""

    drafts: Chosen[Speculation]
    session: Chosen[SessionOptions]
    loading: Loading
    hub: FromHub = FromHub()

    @property
    def kinds(self) -> tuple[str, ...]:
        """The drafters' names; none without --spec."""
        return self.drafts.values["kinds"]

    def having(self, kinds: tuple[str, ...], **session: Any) -> Drafting:
        """The same with other drafters and other values of SessionOptions."""
        return replace(
            self,
            drafts=replace(self.drafts, values={**self.drafts.values, "kinds": kinds}),
            session=replace(self.session, values={**self.session.values, **session}),
        )

    def check(self) -> None:
        """Raise typer.BadParameter for what is wrong before any file is opened."""
        load_plugins(DRAFTERS)
        self.session.make()
        if self.kinds:
            self._speculation(None)
        else:
            self._require_nothing_else()
        self.hub.check(self.loading.model, self._draft_path)
        if "draft" in self.kinds and not (self._draft_path or self.hub.draft):
            raise misuse("needed by --spec draft", "--draft-model")

    def open(self) -> Speculation | None:
        """The speculation that a generation is to use. Raises what loading a model raises."""
        if not self.kinds:
            return None
        path, loading = self._draft_path if "draft" in self.kinds else None, self.loading
        if path is None:
            return self._speculation(None)
        return self._speculation(
            load_model(path, loading.device, loading.threads, load=loading.load)
        )

    def ready(self, constraining: Constraining) -> Ready:
        """Check all options, then load the model, make its session and compile the constraint.
        Tells what the session holds where drafts make it hold more. Raises typer.BadParameter for
        options, and what fetching and loading a model raises."""
        self.check()
        must = constraining.asked()
        return self.fetched()._load(must)

    def fetched(self) -> Drafting:
        """The same with files in the place of models of the Hub. Raises what fetching raises."""
        hub, values = self.hub, self.drafts.values
        return replace(
            self,
            loading=replace(self.loading, model=hub.fetched(hub.model) or self.loading.model),
            drafts=replace(
                self.drafts,
                values={**values, "draft_model": hub.fetched(hub.draft) or self._draft_path},
            ),
            hub=FromHub(),
        )

    def _load(self, must: tuple[str, str] | None) -> Ready:
        """Load what `ready` gives. must: kind and source of the constraint."""
        from ..engine import Session

        loading = self.loading
        offload = self.offload(self.session.values.get("n_ctx"))
        model = load_asked(loading, offload)
        plan = model.plan_session(**self.session_options())
        speculation = self.open()
        if speculation or plan.bytes.rollback or plan.bytes.host:
            note(plan.summary)
        constraint = model.constraint(*must) if must else None
        return Ready(model, Session(model, plan), speculation, constraint)

    def session_options(self) -> dict[str, Any]:
        """What a session needs for it. Without drafts and without a number of tokens to go back
        by, the model's backend decides that number."""
        options = dict(self.session.values)
        if self.kinds:
            options.setdefault("n_rs_seq", self._speculation(None).longest)
        return options

    def offload(self, n_ctx: int | None) -> Offload:
        """Which layers go to cards, with room for rollback and for a draft model beside them."""
        layers = self.loading.gpu_layers
        plain = self.loading.offload(n_ctx, self.session_options().get("n_rs_seq", 0))
        path = self._draft_path
        if "draft" not in self.kinds or path is None or layers != "auto":
            return plain
        draft = path.stat().st_size if path.exists() else 0
        return replace(plain, reserve=plain.reserve + draft)

    def _require_nothing_else(self) -> None:
        """Raise typer.BadParameter for what is asked of drafts where there are none."""
        for each, option in options_of(Speculation):
            given = self.drafts.values.get(each.name, each.default)
            if each.name != "kinds" and given != each.default:
                raise misuse("there are no drafters; add --spec", *option.flags)

    @property
    def _draft_path(self) -> Path | None:
        return self.drafts.values["draft_model"]

    def _speculation(self, draft_model: Model | None) -> Speculation:
        return self.drafts.make(draft_model=draft_model, draft_head=self.loading.draft_head > 0)
