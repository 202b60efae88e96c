"""The step that a session runs for so many tokens, and the time of each of its nodes."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from ..backends import Backend
from ..engine import Model
from ..engine.bound_step import Items
from ..engine.buckets import MAX_TOKENS, token_bucket
from ..engine.sequences import Sequences
from ..graph import Graph
from ..graph.errors import RequestError
from ..models import ModelFile
from ..models.step import PAGE, Capacity, StepShape
from .throughput import token_ids

REPETITIONS = 9


@dataclass(frozen=True)
class StepProfile:
    """A compiled step's graph, what it was compiled for, and the seconds of its nodes, by node
    id; none where nothing was measured, and never for leaves and views."""

    graph: Graph
    backend: Backend
    seconds: dict[int, float] = field(default_factory=dict)


def step_graph(file: ModelFile, backend: Backend, n_tokens: int, n_seqs: int) -> StepProfile:
    """The step for n_tokens new tokens in all of n_seqs sequences, rounded up to the next size
    that sessions compile, as it is compiled for a backend. No weights are read.

    Raises RequestError for sizes out of range, Unsupported for ops that the backend lacks."""
    check_sizes(n_tokens, n_seqs)
    n, wants_all = token_bucket(n_tokens), n_tokens == n_seqs
    pages = -(-context(n_tokens, n_seqs) // PAGE)
    capacity = Capacity(n_pages=pages * n_seqs, pages_per_seq=pages, rows=n_seqs)
    shape = StepShape(n, n_seqs, n if wants_all else n_seqs)
    plan = backend.compile(file.arch.build(shape, capacity, file.specs), "step")
    return StepProfile(plan.graph, backend)


def measure_step(
    model: Model, n_tokens: int, n_seqs: int, repetitions: int = REPETITIONS
) -> StepProfile:
    """The same step over empty sequences, with each node's median time.

    Raises RequestError also for devices that cannot time their nodes."""
    check_sizes(n_tokens, n_seqs)
    sequences = Sequences(model, model.plan_session(context(n_tokens, n_seqs), n_seqs))
    ids = token_ids(model.tokenizer.n_vocab or model.n_vocab, n_tokens)
    items = [(seq, ids[seq::n_seqs]) for seq in range(n_seqs)]
    return profile(sequences, items, repetitions)


def profile(sequences: Sequences, items: Items, repetitions: int) -> StepProfile:
    """Evaluate items, then run the same pass again and again, timing every node.

    Raises RequestError for devices that cannot time their nodes."""
    sequences.evaluate(items)
    total = sum(len(tokens) for _, tokens in items)
    bound: Any = sequences.runner.step(total, len(items), len(items)).bound
    model, run = sequences.model, getattr(bound, "profile", None)
    if run is None:
        raise RequestError(f"device {model.device!r} does not time its nodes; measure on the cpu")
    runs = [[ns for _, ns in run(total)] for _ in range(repetitions)]
    graph = bound.plan.graph
    timed = [n for n in graph.nodes if not n.is_leaf and not n.op.view]
    medians = [statistics.median(times) / 1e9 for times in zip(*runs, strict=True)]
    seconds = {n.id: t for n, t in zip(timed, medians, strict=True)}
    return StepProfile(graph, model.backend, seconds)


def context(n_tokens: int, n_seqs: int) -> int:
    """Tokens of the longest sequence."""
    return -(-n_tokens // n_seqs)


def check_sizes(n_tokens: int, n_seqs: int) -> None:
    """Raise RequestError unless each sequence has a token and all fit in a pass."""
    if not 1 <= n_seqs <= n_tokens <= MAX_TOKENS:
        raise RequestError(
            f"a step takes 1 to {MAX_TOKENS} tokens, one or more a sequence; "
            f"got {n_tokens} tokens of {n_seqs} sequences"
        )
