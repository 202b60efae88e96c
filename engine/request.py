"""A request: one text to continue. It takes tokens and gives pieces of text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from .chooser import Chooser
from .constraints import Constraint, start_constraint
from .drafting import Drafting, Opener
from .logprobs import Logprobs
from .options import Options
from .result import Result, message_of
from .sampler import Sampler, SamplerParams
from .stop import StopMatcher
from .timings import Timings, added

if TYPE_CHECKING:
    from .model import Model


class Stage(Enum):
    """Where a request is."""

    QUEUED = "queued"
    PROMPT = "prompt"
    DECODING = "decoding"
    ENDED = "ended"


class Request:
    """A text in progress. tokens, text: what was generated so far; result: None until it ended.

    Made by `Engine.submit`. `cancel` may be called from any thread."""

    def __init__(
        self,
        model: Model,
        prompt: Sequence[int],
        params: SamplerParams,
        options: Options,
        constraint: Constraint | None = None,
        before: Sequence[int] = (),
    ) -> None:
        """before: tokens in front of the prompt, which penalties see too.

        Raises RequestError for parameters out of range and prompt ids outside the vocabulary."""
        self.model, self.prompt, self.options = model, prompt, options
        self.opener: Opener | Drafting | None = None
        self.drafting: Drafting | None = None
        # Rows that pad the embedding beyond the tokenizer's vocabulary are never sampled.
        n_vocab = model.tokenizer.n_vocab or model.n_vocab
        if constraint is not None:
            constraint = start_constraint(constraint, model.tokenizer)
        self.chooser = Chooser(Sampler(params, n_vocab, [*before, *prompt]), n_vocab, constraint)
        asked = options.logprobs
        self._logprobs = None if asked is None else Logprobs(model.tokenizer, asked, n_vocab)
        # How a device can choose for it; None: it cannot, or the host has to see the logits.
        self.draw = self.chooser.device_draw if asked is None else None
        self.on_device = False  # whether the device does
        self.evaluated = 0  # tokens of its text that its sequence should hold evaluated
        self.stage = Stage.QUEUED
        self.seq = -1
        self.room = 0  # tokens that the context has left behind the prompt
        self.tokens: list[int] = []
        self.timings = Timings()
        self.result: Result | None = None
        self.error: BaseException | None = None
        # Whether a token that was taken ends the text, or it has failed.
        self.ending = False
        self.cancelled = False
        # Whether what was chosen and what the sequence holds may disagree at the moment.
        self.changing = False
        self.number = -1  # its place among all that were submitted
        self._drafted: dict[str, Any] = {}  # statistics of drafts from before it was paused
        self._stop = StopMatcher(options.stop)
        shown = frozenset(options.shown_token_ids)
        self._decoder = model.tokenizer.stream(special=shown if shown else False)
        self._ends = {*options.stop_token_ids}
        self._eog = model.tokenizer.eog_ids
        self._text: list[str] = []
        self._ends_at: list[int] = []  # how many tokens there were with each piece of text
        self.drafters: dict[int, str] = {}  # whose draft a token was, by its place in `tokens`
        self._reported = 0  # pieces that `pieces` has given
        self._reason = ""
        self._start = 0
        self._began = self._first_at = 0.0

    def __repr__(self) -> str:
        return f"<Request {self.stage.value}, {len(self.prompt)} + {len(self.tokens)} tokens>"

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._text)

    @property
    def logprobs(self) -> list[dict[str, Any]] | None:
        """What `Result.logprobs` has so far."""
        return None if self._logprobs is None else self._logprobs.entries

    @property
    def stop_text(self) -> str | None:
        """The stop text that ended it, None where none has."""
        return self._stop.matched

    @property
    def sampler(self) -> Sampler:
        """What chooses its tokens."""
        return self.chooser.sampler

    @property
    def token(self) -> int:
        """The newest token, which is chosen and not evaluated."""
        return self.tokens[-1]

    @property
    def length(self) -> int:
        """Tokens of its text with those before it and the newest one, once it has one."""
        return self._start + len(self.tokens)

    @property
    def left(self) -> int | None:
        """Tokens that may still come, None for any number."""
        most = self.options.max_tokens
        return None if most < 0 else most - len(self.tokens)

    def fail(self, error: BaseException) -> None:
        """It cannot go on."""
        self.error, self.ending = error, True

    def cancel(self) -> None:
        """End it before its next pass; it keeps what it has. From any thread."""
        self.cancelled = True

    def began_prompt(self, kept: int, note: str = "") -> None:
        """Its first pass is next; `kept` of its tokens need none. note: why not more."""
        if self.tokens:
            return  # it was paused, and its prompt has its times
        self.timings.cache_note = note
        self.timings.cache_n, self.timings.prompt_n = kept, len(self.prompt) - kept
        self._began = time.perf_counter()

    def pause(self) -> None:
        """It gives up its sequence, and is to be evaluated again: prompt and tokens so far."""
        self.timings.paused_n += 1
        if self.drafting is not None:
            self._drafted = self._statistics(self.drafting)
        self.drafting, self.stage = None, Stage.QUEUED

    def resume(self) -> None:
        """A sequence holds again what it held when the request was paused."""
        self.stage = Stage.DECODING

    def _statistics(self, drafting: Drafting) -> dict[str, Any]:
        """Of all its drafts."""
        found = drafting.statistics(self.seq)
        whole: dict[str, Any] = added(self._drafted, found)
        # A limit, and no sum.
        return whole | {name: found[name] for name in ("draft_max",) if name in found}

    def began_decoding(self, length: int, room: int) -> None:
        """The prompt is evaluated, `length` tokens with those before it, and the context has room
        for so many more."""
        self.stage, self.room = Stage.DECODING, room
        self._start = self.evaluated = length
        self._first_at = time.perf_counter()
        self.timings.prompt_ms = 1e3 * (self._first_at - self._began)
        if self.options.max_tokens == 0:
            self._stop_for("length")

    def take(self, token: int, logits: np.ndarray | None = None) -> None:
        """Go on by a token that the chooser has chosen; `ending` says whether it was the last.

        logits: the row that it was chosen by, f32 [n_vocab], where the host has it."""
        timings, tokens = self.timings, self.tokens
        self.evaluated = self._start + len(tokens)
        timings.predicted_n += 1
        timings.predicted_ms = 1e3 * (time.perf_counter() - self._first_at)
        if token in self._ends or (token in self._eog and self._stops_at_end()):
            self._stop_for("stop")
            return
        tokens.append(token)
        if self._logprobs is not None and logits is not None:
            self._logprobs.add(token, logits)
        piece, stopped = self._decoder.feed(token), False
        if self.options.stop:
            piece, stopped = self._stop.feed(piece)
        if piece:
            self._text.append(piece)
            self._ends_at.append(len(tokens))
        if stopped:
            self._stop_for("stop")
        elif len(tokens) == self.options.max_tokens or len(tokens) > self.room:
            self._stop_for("length")

    def note_drafts(
        self, first: int, taken: Sequence[int], drafted: Sequence[int], drafter: str
    ) -> None:
        """Tokens from `first` on were chosen by a round that a drafter had drafted so."""
        for at, (token, draft) in enumerate(zip(taken, drafted, strict=False), first):
            if token != draft:
                break
            self.drafters[at] = drafter

    @property
    def n_pieces(self) -> int:
        """Pieces of text so far."""
        return len(self._text)

    def piece(self, at: int) -> str:
        """One of them."""
        return self._text[at]

    def piece_end(self, at: int) -> int:
        """How many tokens there were with a piece of text."""
        return self._ends_at[at]

    def pieces(self) -> list[str]:
        """Those since the last call."""
        found = self._text[self._reported :]
        self._reported += len(found)
        return found

    def end(self, reason: str = "") -> None:
        """Make the result. reason: by default what `take` found."""
        error = self.error
        if not error:
            self._flush()
        self.timings.extra = self._drafted
        if self.drafting is not None and self.seq >= 0:
            self.timings.extra = self._statistics(self.drafting)
        sampler = self.chooser.sampler
        self.result = Result(
            self.text,
            list(self.tokens),
            len(self.prompt),
            "error" if error else reason or self._reason,
            self.timings.as_dict(),
            self.model.name,
            self.model.device,
            None if sampler.params.greedy else sampler.seed,
            message_of(error) if error else "",
            None if self._logprobs is None else list(self._logprobs.entries),
        )
        self.stage = Stage.ENDED

    def _stop_for(self, reason: str) -> None:
        self._reason, self.ending = reason, True

    def _stops_at_end(self) -> bool:
        return not self.options.ignore_eos or self.chooser.finished

    def _flush(self) -> None:
        """Text that was withheld: part of a character, or what might have become a stop."""
        if self._stop.matched is not None:
            return
        piece, _ = self._stop.feed(self._decoder.finish())
        piece += self._stop.finish()
        if piece:
            self._text.append(piece)
            self._ends_at.append(len(self.tokens))
        if self._stop.matched is not None:
            self._reason = "stop"


def by_drafting(requests: Sequence[Request]) -> list[tuple[Drafting, list[Request]]]:
    """Those with drafters, in groups that draft together."""
    if len({id(request.drafting) for request in requests}) == 1:
        drafting = requests[0].drafting
        return [] if drafting is None else [(drafting, list(requests))]
    groups: dict[int, tuple[Drafting, list[Request]]] = {}
    for request in requests:
        if request.drafting is not None:
            groups.setdefault(id(request.drafting), (request.drafting, []))[1].append(request)
    return list(groups.values())
