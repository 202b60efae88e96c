"""Perplexity of a model on a text: how well each token is predicted from those before it.

Chunks, and the span that is scored in each, are those of llama.cpp's perplexity tool."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..engine import Model, Session
from ..engine.buckets import MAX_TOKENS
from ..graph.errors import BackendError, RequestError

LEAST_CONTEXT = 4
LOGIT_BYTES = 64 << 20
MOST_NATS = 700.0  # about where exp leaves f64
_WIDE_ROWS = 16


@dataclass(frozen=True)
class Span:
    """In each chunk of `ctx` tokens, tokens first .. last (counted from 0) are scored: each has
    at least half of the chunk before it."""

    ctx: int

    @property
    def first(self) -> int:
        """The first token that is scored."""
        return self.ctx // 2 + 1

    @property
    def last(self) -> int:
        """The last token that is scored."""
        return self.ctx - 1

    @property
    def length(self) -> int:
        """Scored tokens of a chunk."""
        return self.last - self.first + 1


@dataclass(frozen=True)
class Estimate:
    """perplexity = exp(nll), nll the mean negative log-likelihood in nats over `tokens` tokens;
    their standard errors, that of the perplexity to first order."""

    perplexity: float
    perplexity_error: float
    nll: float
    nll_error: float
    tokens: int
    chunks: int


def estimate(losses: Sequence[np.ndarray]) -> Estimate:
    """The estimate from every chunk's losses in nats, two or more in all.

    Raises BackendError for losses that no working model has: not finite, or above MOST_NATS."""
    flat = np.concatenate(losses)
    wild = np.count_nonzero(~(np.abs(flat) <= MOST_NATS))
    if wild:
        raise BackendError(
            f"{wild} of {flat.size} tokens have a likelihood of 0 or none; the model's weights are "
            "damaged, or not those of a language model"
        )
    mean = float(flat.mean())
    error = float(flat.std(ddof=1)) / math.sqrt(flat.size) if flat.size > 1 else math.nan
    return Estimate(math.exp(mean), math.exp(mean) * error, mean, error, flat.size, len(losses))


def token_losses(logits: np.ndarray, targets: Sequence[int]) -> np.ndarray:
    """-log softmax(logits)[target] of every row, f64 [M]. logits: f32 [M, n_vocab]."""
    out = np.empty(len(logits))
    for start in range(0, len(logits), _WIDE_ROWS):
        rows = logits[start : start + _WIDE_ROWS].astype(np.float64)
        wanted = rows[np.arange(len(rows)), np.asarray(targets[start : start + len(rows)])]
        top = rows.max(-1)
        out[start : start + len(rows)] = np.log(np.exp(rows - top[:, None]).sum(-1)) + top - wanted
    return out


def cut(model: Model, text: str, ctx: int, n_chunks: int = -1) -> list[list[int]]:
    """The text's chunks of ctx tokens, the remainder left out; at most n_chunks unless that is -1.

    Where the model wants a begin token, it takes the place of each chunk's first. Special tokens
    in the text are text. Raises RequestError for a text shorter than a chunk."""
    if ctx < LEAST_CONTEXT:
        raise RequestError(f"the context should be {LEAST_CONTEXT} tokens or more, got {ctx}")
    tokens = model.tokenizer.encode(text, add_special=True)
    found = len(tokens) // ctx
    if not found:
        raise RequestError(
            f"the text has {len(tokens)} tokens, which is less than one chunk of {ctx}; give a "
            "longer text or a smaller context (-c)"
        )
    found = min(found, n_chunks) if n_chunks >= 0 else found
    chunks = [tokens[i * ctx : (i + 1) * ctx] for i in range(found)]
    begin = model.tokenizer.bos_id if model.tokenizer.add_bos else None
    return chunks if begin is None else [[begin, *chunk[1:]] for chunk in chunks]


class Perplexity:
    """Scores chunks, n_seqs of them in a pass.

    All passes are of kind "step", whose rows do not depend on each other's company on devices that
    are row-exact, so that the losses do not depend on n_seqs there."""

    def __init__(self, model: Model, ctx: int, n_seqs: int = 1) -> None:
        if not 1 <= n_seqs <= MAX_TOKENS:
            raise RequestError(f"n_seqs should be 1 to {MAX_TOKENS}, got {n_seqs}")
        self.model, self.span, self.n_seqs = model, Span(ctx), n_seqs
        self.session: Session = model.session(ctx, n_seqs)
        self._prefix_rows = max(1, MAX_TOKENS // n_seqs)
        rows = max(1, min(LOGIT_BYTES // (4 * model.n_vocab), MAX_TOKENS) // n_seqs)
        self._scored_rows = 1 << (rows.bit_length() - 1)

    def run(
        self,
        chunks: Sequence[Sequence[int]],
        progress: Callable[[Estimate], None] = lambda so_far: None,
    ) -> Estimate:
        """Score all chunks. progress is called after every pass's chunks."""
        losses: list[np.ndarray] = []
        for start in range(0, len(chunks), self.n_seqs):
            losses += self.losses(chunks[start : start + self.n_seqs])
            progress(estimate(losses))
        return estimate(losses)

    def losses(self, chunks: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Losses in nats of the scored tokens of up to n_seqs chunks, f64 [span.length] each."""
        for seq in range(len(chunks)):
            self.session.clear(seq)
        before = self.span.first - 1
        for a, b in _ranges(0, before, self._prefix_rows):
            self.session.evaluate([(seq, chunk[a:b]) for seq, chunk in enumerate(chunks)])
        parts: list[list[np.ndarray]] = [[] for _ in chunks]
        for a, b in _ranges(before, self.span.last, self._scored_rows):
            items = [(seq, chunk[a:b]) for seq, chunk in enumerate(chunks)]
            logits = self.session.evaluate(items, want="all").logits
            for seq, chunk in enumerate(chunks):
                rows = logits[seq * (b - a) : (seq + 1) * (b - a)]
                parts[seq].append(token_losses(rows, chunk[a + 1 : b + 1]))
        return [np.concatenate(part) for part in parts]

    def report(self, result: Estimate) -> dict[str, Any]:
        """The result with what it was measured on."""
        return {
            **asdict(result),
            "ctx": self.span.ctx,
            "scored": [self.span.first, self.span.last],
            "seqs": self.n_seqs,
            "model": self.model.name,
            "device": self.model.device,
        }


def _ranges(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """start .. stop in parts of up to size."""
    for at in range(start, stop, size):
        yield at, min(at + size, stop)
