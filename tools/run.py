"""`riverrun run`: continue a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from ..engine import SamplerParams
from ..engine.session_options import SessionOptions
from ..graph.fields import integer, option
from ..speculative import Speculation
from .constraints import Constraining
from .ending import Ending
from .files import STANDARD_INPUT, piped, read_input, read_text
from .generating import print_object, print_text
from .hub import FromHub
from .loading import Loading
from .misuse import misuse
from .options import MOST, Json, read_integers
from .parameters import Chosen, command
from .speculation import ONE_TEXT, Drafting
from .templating import Templating

if TYPE_CHECKING:
    from ..engine import Model


Chat: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--chat",
        help="The prompt is a message for a chat model, and its answer alone is printed; so it is "
        "with any option of chats.",
    ),
]


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
        return misuse(f"give one of them, got {got}", "-p", "-f", "--tokens")

    def ids(self, model: Model, parse_special: bool = True) -> Sequence[int]:
        """The token ids. parse_special: read control tokens that a text spells out as those."""
        if self.text is None:
            return self.tokens or ()
        return model.tokenizer.encode(self.text, parse_special=parse_special)

    def shown(self, model: Model) -> str:
        """The text that the continuation stands behind."""
        return model.tokenizer.decode(self.tokens or []) if self.text is None else self.text


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
            raise misuse("needs --json, which shows them", "--logprobs")


@command
def run(
    prompt: Prompt,
    ending: Ending,
    sampling: SamplerParams,
    session: Annotated[Chosen[SessionOptions], ONE_TEXT],
    loading: Loading,
    hub: FromHub,
    drafts: Chosen[Speculation],
    constraining: Constraining,
    templating: Templating,
    report: Report,
    as_chat: Chat = False,
    as_json: Json = False,
) -> None:
    """Continue a prompt: the text goes to standard output as it comes, timings to standard error.

    With --json one object at the end is all that standard output gets."""
    as_message = as_chat or templating.given
    if as_message and prompt.tokens is not None:
        raise misuse("a message is text; give it by -p or -f", "--tokens")
    prompt = prompt.found()
    report.check(as_json)
    template = templating.arguments()
    ready = Drafting(drafts, session, loading, hub).ready(constraining)
    model = ready.model
    ids: Sequence[int]
    ends: Sequence[int] = ()
    if as_message:
        message = {"role": "user", "content": prompt.text}
        made = model.chat_prompt([*templating.messages(), message], **template)
        ids, ends = made.tokens, () if ending.ignore_eos else made.stop_token_ids
    else:
        ids = prompt.ids(model, templating.parse_special)
    generation = model.generate(
        ids,
        ending.n,
        stop=ending.stop,
        stop_token_ids=[*(ending.stop_token_ids or ()), *ends],
        ignore_eos=ending.ignore_eos,
        session=ready.session,
        speculative=ready.speculation,
        constraint=ready.constraint,
        logprobs=report.logprobs,
        **vars(sampling),
    )
    if as_json:
        print_object(generation)
    else:
        print_text(generation, "" if as_message else prompt.shown(model))
