"""The generation loop: prompt, then one token at a time, until something ends it."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..graph.errors import RequestError
from .sampler import Sampler, SamplerParams
from .session import Session
from .stop import StopMatcher
from .timings import Timings

if TYPE_CHECKING:
    from .model import Model


@dataclass(frozen=True)
class Options:
    """What ends a generation: token count (-1: none), stop texts, the end token unless ignored."""

    max_tokens: int = -1
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

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
        session: Session,
        prompt: Sequence[int],
        params: SamplerParams,
        options: Options,
    ) -> None:
        if not prompt:
            raise RequestError("the prompt has no tokens; give at least one")
        if len(prompt) + session.length() > session.n_ctx:
            raise RequestError(
                f"the prompt's {len(prompt)} tokens do not fit in a context of {session.n_ctx} "
                f"of which {session.length()} are used; use a larger context (-c)"
            )
        self.model, self.session, self.prompt, self.options = model, session, prompt, options
        # Rows that pad the embedding beyond the tokenizer's vocabulary are never sampled.
        self._n_vocab = model.tokenizer.n_vocab or model.n_vocab
        self.sampler = Sampler(params, self._n_vocab, prompt)
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
        self.session.prepare(len(self.prompt))
        began = time.perf_counter()
        logits = self.session.prefill(self.prompt)
        first = time.perf_counter()
        self.timings.prompt_n = len(self.prompt)
        self.timings.prompt_ms = 1e3 * (first - began)
        while not self._reason:
            piece = self._step(logits)
            self.timings.predicted_ms = 1e3 * (time.perf_counter() - first)
            if piece:
                self._text.append(piece)
                yield piece
            if not self._reason:
                logits = self.session.decode(self.tokens[-1])
        tail = self._finish()
        if tail:
            self._text.append(tail)
            yield tail

    def _step(self, logits: np.ndarray) -> str:
        """Take one token; text that is now certain. Sets the reason when generation ends."""
        if len(self.tokens) == self.options.max_tokens:
            self._reason = "length"
            return ""
        token = self.sampler.sample(logits[: self._n_vocab], self.session.length())
        self.timings.predicted_n += 1
        if token in self.model.tokenizer.eog_ids and not self.options.ignore_eos:
            self._reason = "stop"
            return ""
        self.sampler.accept(token)
        self.tokens.append(token)
        piece, stopped = self._stop.feed(self._decoder.feed(token))
        if stopped:
            self._reason = "stop"
        elif len(self.tokens) == self.options.max_tokens or self._full():
            self._reason = "length"
        return piece

    def _full(self) -> bool:
        return self.session.length() >= self.session.n_ctx

    def _finish(self) -> str:
        """Text that was held back: part of a character, or what might have become a stop."""
        if self._stop.matched is not None:
            return ""
        piece, _ = self._stop.feed(self._decoder.finish())
        piece += self._stop.finish()
        if self._stop.matched is not None:
            self._reason = "stop"
        return piece
