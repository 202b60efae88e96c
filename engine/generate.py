"""The generation loop: prompt, then one token at a time, until something ends it."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..graph.errors import RequestError
from .chooser import Chooser
from .constraints import Constraint
from .decoding import Decoding
from .sampler import Sampler, SamplerParams
from .stop import StopMatcher
from .timings import Timings

if TYPE_CHECKING:
    from .model import Model


@dataclass(frozen=True)
class Options:
    """What ends a generation: token count (-1: none), stop texts, the end token unless ignored.

    cache_prompt: the prompt is the whole text, of which the session keeps what it already holds;
    else it continues what the session holds."""

    max_tokens: int = -1
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    cache_prompt: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < -1:
            raise RequestError(f"max_tokens should be -1, 0 or more, got {self.max_tokens}")


@dataclass(frozen=True)
class Result:
    """A finished generation. tokens: generated ids without the end token; finish_reason: "stop"
    (end token or stop text), "length" (max_tokens or context) or "error"."""

    text: str
    tokens: list[int]
    prompt_tokens: int
    finish_reason: str
    timings: dict[str, float]
    model: str
    device: str

    def as_dict(self) -> dict[str, Any]:
        """The fields, ready for JSON."""
        return asdict(self)


class Generation:
    """A generation in progress: iterate over its pieces of text, then read `result`."""

    def __init__(
        self,
        model: Model,
        decoding: Decoding,
        prompt: Sequence[int],
        params: SamplerParams,
        options: Options,
        constraint: Constraint | None = None,
    ) -> None:
        session, seq = decoding.session, decoding.seq
        if not prompt:
            raise RequestError("the prompt has no tokens; give at least one")
        used = 0 if options.cache_prompt else session.length(seq)
        if len(prompt) + used > session.n_ctx:
            raise RequestError(
                f"the prompt's {len(prompt)} tokens do not fit in a context of {session.n_ctx} "
                f"of which {used} are used; use a larger context (-c)"
            )
        self.model, self.session, self.prompt, self.options = model, session, prompt, options
        self.decoding, self._seq = decoding, seq
        # Rows that pad the embedding beyond the tokenizer's vocabulary are never sampled.
        n_vocab = model.tokenizer.n_vocab or model.n_vocab
        self.sampler = Sampler(params, n_vocab, prompt)
        self._chooser = Chooser(self.sampler, n_vocab, constraint)
        self.tokens: list[int] = []
        self.timings = Timings()
        self._stop = StopMatcher(options.stop)
        self._decoder = model.tokenizer.stream()
        self._text: list[str] = []
        self._reason = ""
        self._pieces = self._run()

    def __iter__(self) -> Iterator[str]:
        return self._pieces

    def close(self) -> None:
        """Break off; the session keeps what was evaluated, `result` what was generated."""
        self._pieces.close()

    @property
    def result(self) -> Result:
        """The finished result; runs what has not run yet."""
        for _ in self._pieces:
            pass
        return Result(
            "".join(self._text),
            self.tokens,
            len(self.prompt),
            self._reason or "error",
            self.timings.as_dict(),
            self.model.name,
            self.model.device,
        )

    def _run(self) -> Generator[str, None, None]:
        kept = self.session.reuse(self.prompt, self._seq) if self.options.cache_prompt else 0
        self.decoding.prepare(len(self.prompt) - kept, self._chooser)
        began = time.perf_counter()
        logits = self.decoding.prompt(self.prompt, kept)
        first = time.perf_counter()
        self.timings.cache_n = kept
        self.timings.prompt_n = len(self.prompt) - kept
        self.timings.prompt_ms = 1e3 * (first - began)
        self._room = self.session.n_ctx - self.session.length(self._seq)
        tokens: Iterator[int] = self._first(logits)
        while not self._reason:
            try:
                for token in tokens:
                    piece = self._take(token)
                    self.timings.predicted_ms = 1e3 * (time.perf_counter() - first)
                    if piece:
                        self._text.append(piece)
                        yield piece
                    if self._reason:
                        break
            finally:
                _close(tokens)
                self.timings.extra = self.decoding.statistics()
            if not self._reason:
                tokens = self.decoding.round(self.tokens[-1], self._chooser, self._left())
        tail = self._finish()
        if tail:
            self._text.append(tail)
            yield tail

    def _first(self, logits: np.ndarray) -> Iterator[int]:
        """The token after the prompt."""
        if self.options.max_tokens == 0:
            self._reason = "length"
            return
        yield self._chooser.choose(logits, self.session.length(self._seq))

    def _left(self) -> int | None:
        """Tokens that may still come."""
        most = self.options.max_tokens
        return None if most < 0 else most - len(self.tokens)

    def _take(self, token: int) -> str:
        """Take one token; text that is now certain. Sets the reason when generation ends."""
        self.timings.predicted_n += 1
        ends = not self.options.ignore_eos or self._chooser.finished
        if ends and token in self.model.tokenizer.eog_ids:
            self._reason = "stop"
            return ""
        self.tokens.append(token)
        piece, stopped = self._stop.feed(self._decoder.feed(token))
        if stopped:
            self._reason = "stop"
        elif len(self.tokens) == self.options.max_tokens or len(self.tokens) > self._room:
            self._reason = "length"
        return piece

    def _finish(self) -> str:
        """Text that was held back: part of a character, or what might have become a stop."""
        if self._stop.matched is not None:
            return ""
        piece, _ = self._stop.feed(self._decoder.finish())
        piece += self._stop.finish()
        if self._stop.matched is not None:
            self._reason = "stop"
        return piece


def _close(tokens: Iterator[int]) -> None:
    """End a round that may not have been taken to its end."""
    if isinstance(tokens, Generator):
        tokens.close()
