"""`riverrun run`: continue a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from ..engine import Model, SamplerParams, Session
from ..engine.session_plan import SessionOptions
from ..graph.fields import integer, option
from ..speculative import Speculation
from .constraints import Constraining
from .files import piped, read_input, read_text
from .generating import print_object, print_text
from .loading import Loading, load_model
from .messages import note
from .options import MOST, Json, read_integers
from .parameters import Chosen, command
from .speculation import Drafting

STANDARD_INPUT = "-"


@dataclass(frozen=True)
class Prompt:
    """What to continue: one of these."""

    text: str | None = option(None, "-p", "--prompt", help="Text to continue; -: standard input.")
    file: Path | None = option(
        None, "-f", "--file", metavar="FILE", help="Text file to continue, UTF-8."
    )
    tokens: list[int] | None = option(
        None,
        "--tokens",
        metavar="ID,ID,...",
        help="Token ids, instead of -p.",
        read=read_integers,
    )

    def found(self) -> Prompt:
        """The same with what it names read: `text` or `tokens` is given. Without any, standard
        input is the prompt unless it is a terminal, less a line break at its end, as of a file.

        Raises typer.BadParameter unless one is given, RequestError for a file that cannot be
        read."""
        given = sum(value is not None for value in (self.text, self.file, self.tokens))
        if given > 1:
            raise self._wrong("both" if given == 2 else "all")
        text = self.text
        if self.text == STANDARD_INPUT or (not given and piped()):
            text = read_input("-p")
        elif self.file is not None:
            text = read_text(self.file, "-f")
        if not given and not text:
            raise self._wrong("neither")
        if text is None or text is self.text:
            return self
        return Prompt(text.removesuffix("\n"))

    @staticmethod
    def _wrong(got: str) -> Exception:
        return typer.BadParameter(f"give one of them, got {got}", param_hint="-p / -f / --tokens")

    def ids(self, model: Model) -> Sequence[int]:
        """The token ids."""
        return self.tokens if self.text is None else model.tokenize(self.text)  # type: ignore[return-value]

    def shown(self, model: Model) -> str:
        """The text that the continuation stands behind."""
        return model.tokenizer.decode(self.tokens or []) if self.text is None else self.text


def read_stops(texts: Sequence[str]) -> tuple[str, ...]:
    """Stop texts, none of them empty. Raises ValueError."""
    if "" in texts:
        raise ValueError("expected some text, got none")
    return tuple(texts)


@dataclass(frozen=True)
class Ending:
    """What ends the text."""

    n: int = option(
        128,
        "-n",
        "--n-predict",
        metavar="N",
        help="Tokens to generate; -1: to the end token or the context's end.",
        check=integer(-1, MOST),
    )
    stop: tuple[str, ...] = option(
        (),
        "--stop",
        metavar="STR",
        help="Text that ends it; repeatable.",
        repeatable=True,
        read=read_stops,
    )
    stop_token_ids: list[int] | None = option(
        None,
        "--stop-token-ids",
        metavar="ID,ID,...",
        help="Tokens that end it, like the end token.",
        read=read_integers,
    )
    ignore_eos: bool = option(False, "--ignore-eos", help="Do not stop at the end token.")


@dataclass(frozen=True)
class Report:
    """What the object of --json has beside the text."""

    logprobs: int | None = option(
        None,
        "--logprobs",
        metavar="N",
        help="With --json: log-probabilities of each token and the N likeliest.",
        shown="none",
        check=integer(0, MOST),
    )

    def check(self, as_json: bool) -> None:
        """Raise typer.BadParameter where nothing would show what was asked for."""
        if self.logprobs is not None and not as_json:
            raise typer.BadParameter("needs --json, which shows them", param_hint="--logprobs")


@command
def run(
    prompt: Prompt,
    ending: Ending,
    sampling: SamplerParams,
    session: Chosen[SessionOptions],
    loading: Loading,
    drafts: Chosen[Speculation],
    constraining: Constraining,
    report: Report,
    as_json: Json = False,
) -> None:
    """Continue a prompt: the text goes to standard output as it comes, timings to standard error.

    With --json one object at the end is all that standard output gets."""
    prompt = prompt.found()
    drafting = Drafting(drafts, session, loading)
    drafting.check()
    report.check(as_json)
    must = constraining.asked()
    offload = drafting.offload(session.values.get("n_ctx"))
    model = load_model(
        loading.model, loading.device, loading.threads, loading.draft_head, offload, loading.load
    )
    plan = model.plan_session(**drafting.session_options())
    speculation = drafting.open()
    if speculation or plan.bytes.rollback or plan.bytes.host:
        note(plan.summary)
    generation = model.generate(
        prompt.ids(model),
        ending.n,
        stop=ending.stop,
        stop_token_ids=ending.stop_token_ids or (),
        ignore_eos=ending.ignore_eos,
        session=Session(model, plan),
        speculative=speculation,
        constraint=model.constraint(*must) if must else None,
        logprobs=report.logprobs,
        **vars(sampling),
    )
    if as_json:
        print_object(generation)
    else:
        print_text(generation, prompt.shown(model))
