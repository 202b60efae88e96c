"""Embeddings of texts: the rows after a model's final norm, pooled to one vector a text.

A vector depends on its own text alone, not on the others of a call: which kernels a text passes
through and where it is cut follow from its length. Where prompt kernels are not row-exact, only
short texts share passes, of kind "step", whose kernels are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..graph.errors import BackendError, RequestError
from ..models.step import PAGE
from .buckets import MAX_TOKENS, sequence_bucket
from .embedding_options import EmbeddingOptions
from .items import checked_ids
from .session import Session
from .session_plan import SessionPlan

if TYPE_CHECKING:
    from .model import Model

# Texts in one pass, and bytes that their memory may take.
MOST_AT_ONCE, MEMORY = 16, 512 << 20
# The longest text that shares a pass where prompt kernels are not row-exact, in tokens.
SHORT = 64
# Values of the metadata key `pooling_type` (llama.cpp's enumeration).
POOLING_TYPES = {0: "none", 1: "mean", 2: "cls", 3: "last"}


class Pooling(NamedTuple):
    """How rows become a text's embedding. keep: what is needed of the rows of one pass, [n, E];
    join: the embedding from that of all passes and the number of tokens."""

    keep: Callable[[np.ndarray], np.ndarray]
    join: Callable[[Sequence[np.ndarray], int], np.ndarray]


POOLINGS = {
    "mean": Pooling(
        lambda rows: rows.sum(0, dtype=np.float64),
        lambda parts, n: np.sum(parts, axis=0) / n,
    ),
    "last": Pooling(lambda rows: rows[-1].copy(), lambda parts, n: parts[-1]),
    "cls": Pooling(lambda rows: rows[0].copy(), lambda parts, n: parts[0]),
    "none": Pooling(lambda rows: rows.copy(), lambda parts, n: np.concatenate(parts)),
}


def embed(
    model: Model, texts: Sequence[Any], options: EmbeddingOptions, **memory: Any
) -> list[np.ndarray]:
    """The embedding of each text (a str, or token ids): f32 [n_embd], with pooling "none"
    [n_tokens, n_embd]. memory: further fields of SessionOptions.

    Raises RequestError for texts that are none or empty, BackendError for values that are not
    finite."""
    if not isinstance(texts, Sequence):
        raise RequestError(f"texts should be a list of texts or of token ids, got {texts!r}")
    prompts = [text_ids(model, text, i) for i, text in enumerate(texts)]
    pooling = POOLINGS[options.pooling or default_pooling(model)]
    kept: list[list[np.ndarray]] = [[] for _ in prompts]
    for part, rows in _rows(model, prompts, memory):
        kept[part].append(pooling.keep(rows))
    found = []
    for i, parts in enumerate(kept):
        vector = pooling.join(parts, len(prompts[i]))
        if not np.isfinite(vector).all():
            raise BackendError(f"the embedding of text {i} is not finite; the model is damaged")
        found.append(_unit(vector) if options.normalize else vector.astype(np.float32))
    return found


def default_pooling(model: Model) -> str:
    """What the metadata key `pooling_type` of the architecture says, "mean" without it. Raises
    RequestError for kinds that are no pooling of rows."""
    key = f"{model.source.arch.name}.pooling_type"
    kind = model.source.file.get_u32(key, 1)
    if kind not in POOLING_TYPES:
        raise RequestError(
            f"{model.name}: {key} is {kind}, which gives no embedding (4: a score of two texts); "
            f"give pooling as one of {', '.join(POOLINGS)}"
        )
    return POOLING_TYPES[kind]


def text_ids(model: Model, text: Any, number: int) -> list[int]:
    """The token ids of a text, special tokens of the vocabulary around it, or of ids as they are.
    Raises RequestError for one without tokens."""
    ids = model.tokenize(text) if isinstance(text, str) else checked_ids(text, model.n_vocab)
    if not ids or (isinstance(text, str) and not text):
        raise RequestError(f"text {number} is empty; an embedding needs at least one token")
    return list(ids)


def _rows(
    model: Model, prompts: Sequence[Sequence[int]], memory: dict[str, Any]
) -> Iterator[tuple[int, np.ndarray]]:
    """(index of the text, rows f32 [n, E]) for all tokens of all texts, those of each text in
    order; rows are valid until the next."""
    exact = model.backend.capabilities.prompt_exact
    longest = MAX_TOKENS if exact else SHORT
    short = [i for i, ids in enumerate(prompts) if len(ids) <= longest]
    long = [i for i, ids in enumerate(prompts) if len(ids) > longest]
    if short:
        kind = "prefill" if exact else "step"
        yield from _together(model, prompts, short, kind, memory)
    if long:
        session = _session(model, max(len(prompts[i]) for i in long), 1, memory)
        for i in long:
            for rows in _alone(session, prompts[i]):
                yield i, rows


def _together(
    model: Model,
    prompts: Sequence[Sequence[int]],
    which: Sequence[int],
    kind: str,
    memory: dict[str, Any],
) -> Iterator[tuple[int, np.ndarray]]:
    """Passes of several whole texts, those of a length together."""
    order = sorted(which, key=lambda i: len(prompts[i]))
    longest = len(prompts[order[-1]])
    session = _session(model, longest, _at_once(model, longest, len(order), memory), memory)
    while order:
        group, total = list[int](), 0
        while order and len(group) < session.sequences.n_seqs:
            total += len(prompts[order[0]])
            if total > MAX_TOKENS:
                break
            group.append(order.pop(0))
        items = [(seq, prompts[i]) for seq, i in enumerate(group)]
        hidden = session.evaluate(items, want="none", hidden=True, kind=kind).hidden
        assert hidden is not None
        at = 0
        for seq, i in enumerate(group):
            yield i, hidden[at : at + len(prompts[i])]
            at += len(prompts[i])
            session.clear(seq)


def _alone(session: Session, ids: Sequence[int]) -> Iterator[np.ndarray]:
    """The passes of one text, cut like a prompt."""
    session.clear()
    at = 0
    for n in session.sequences.cuts(0, len(ids)):
        part, kind = ids[at : at + n], session.sequences.prompt_kind(n)
        found = session.evaluate([(0, part)], want="none", hidden=True, kind=kind)
        assert found.hidden is not None
        yield found.hidden
        at += n


def _session(model: Model, longest: int, n_seqs: int, memory: dict[str, Any]) -> Session:
    return Session(model, _plan(model, longest, n_seqs, memory))


def _plan(model: Model, longest: int, n_seqs: int, memory: dict[str, Any]) -> SessionPlan:
    """A session for texts of that many tokens; its sizes go in powers of two, so that calls share
    compiled plans."""
    rounded = PAGE << max(0, -(-longest // PAGE) - 1).bit_length()
    n_ctx = max(longest, min(rounded, model.n_ctx_train))
    return model.plan_session(n_ctx, n_seqs, **{"n_rs_seq": 0, "cache_bytes": 0, **memory})


def _at_once(model: Model, longest: int, n: int, memory: dict[str, Any]) -> int:
    """How many of n texts are in memory at a time."""
    each = _plan(model, longest, 1, memory).bytes.device
    room = max(1, MEMORY // max(1, each))
    most = min(MOST_AT_ONCE, 1 << (room.bit_length() - 1))
    return sequence_bucket(min(n, most), most)


def _unit(vectors: np.ndarray) -> np.ndarray:
    """Each vector divided by its Euclidean length, f32; one of zeros stays."""
    wide = vectors.astype(np.float64)
    lengths = np.sqrt((wide * wide).sum(-1, keepdims=True))
    return (wide / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
