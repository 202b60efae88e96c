"""A session: the memory of one or several sequences over a model, and the passes through it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..backends import BoundPlan, Pools
from ..graph.dtype import DType, dtype
from ..graph.errors import DTypeError, RequestError, SessionBusy
from ..models.step import PAGE, Capacity, StepShape
from .bound_step import BoundStep, Items
from .buckets import MAX_TOKENS, sequence_bucket, token_bucket
from .memory import HybridMemory, Memory, PagedKV, RecurrentMemory

if TYPE_CHECKING:
    from .model import Model

CACHE_TYPES = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class Pass:
    """What a pass gives: logits f32 [M, n_vocab]; hidden f32 [M, n_embd] when asked for.

    Both are views, valid until the session's next pass."""

    logits: np.ndarray
    hidden: np.ndarray | None


class OneThread:
    """A with block that one thread at a time may enter; a second one gets SessionBusy."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise SessionBusy(
                "this session is in use by another thread; give each thread its own session"
            )

    def __exit__(self, *exc: object) -> None:
        self._lock.release()


class Session:
    """Evaluates tokens of n_seqs sequences of up to n_ctx tokens each.

    One thread at a time; a second one gets SessionBusy. A model may serve many sessions."""

    def __init__(
        self,
        model: Model,
        n_ctx: int | None = None,
        n_seqs: int = 1,
        cache_type_k: str = "f16",
        cache_type_v: str = "f16",
    ) -> None:
        self.model = model
        self.n_ctx = check_context(n_ctx, model.n_ctx_train)
        if n_seqs < 1:
            raise RequestError(f"n_seqs should be 1 or more, got {n_seqs}")
        self.n_seqs = n_seqs
        pages = -(-self.n_ctx // PAGE)
        self.capacity = Capacity(
            n_pages=pages * n_seqs,
            pages_per_seq=pages,
            n_seqs=n_seqs,
            k_dtype=_cache_type("cache_type_k", cache_type_k),
            v_dtype=_cache_type("cache_type_v", cache_type_v),
        )
        first = model.plan(StepShape(1, 1, 1), self.capacity, "step")
        self.pools = Pools(first.states)
        self._kv = PagedKV(n_seqs, pages * n_seqs, self.n_ctx)
        self.memory = self._make_memory(first.states)
        self._bound: dict[tuple[StepShape, str], BoundPlan] = {}
        self._steps: dict[tuple[int, int, str, bool, str], BoundStep] = {}
        self._exclusive = OneThread()
        self._step(1, 1, "last", False, "step")

    def length(self, seq: int = 0) -> int:
        """Tokens that a sequence holds."""
        return self.memory.length(seq)

    def clear(self, seq: int = 0) -> None:
        """Forget a sequence."""
        with self._exclusive:
            self.memory.remove(seq, 0)

    def evaluate(
        self,
        items: Items,
        want: str = "last",
        hidden: bool = False,
        kind: str = "step",
    ) -> Pass:
        """One pass over new tokens of some sequences: [(sequence, token ids), ...].

        want: "last" gives logits of each sequence's last token, in the order of items; "all" of
        every token. Raises RequestError, before anything changes, for ids outside the vocabulary,
        a full context, or more than 512 tokens."""
        with self._exclusive:
            total = self._check(items, want)
            step = self._step(total, len(items), want, hidden, kind)
            self.memory.reserve([(seq, len(tokens)) for seq, tokens in items])
            try:
                step.fill(items, total, self._kv)
                step.bound.run(total)
            except BaseException:
                self._abandon(items)
                raise
            for seq, tokens in items:
                self.memory.commit(seq, len(tokens))
            outputs = step.bound.outputs
            m = total if want == "all" else len(items)
            return Pass(outputs["logits"][:m], outputs["hidden"][:m] if hidden else None)

    def prefill(self, tokens: Sequence[int], seq: int = 0) -> np.ndarray:
        """Evaluate a prompt in chunks; logits f32 [n_vocab] of its last token.

        Chunks end at absolute multiples of 512 positions, so that a prompt continued from a
        prefix is cut like a whole one. Raises RequestError when the context is too small."""
        if not len(tokens):
            raise RequestError("the prompt has no tokens; give at least one")
        length = self.length(seq)
        if length + len(tokens) > self.n_ctx:
            raise RequestError(
                f"the prompt's {length + len(tokens)} tokens do not fit in a context of "
                f"{self.n_ctx}; use a larger context (-c) or a shorter prompt"
            )
        logits, start = np.empty(0, np.float32), 0
        for n in _chunks(length, len(tokens)):
            part = tokens[start : start + n]
            logits = self.evaluate([(seq, part)], kind=_chunk_kind(n)).logits[0]
            start += n
        return logits

    def prepare(self, n_tokens: int, seq: int = 0) -> None:
        """Compile what a prompt of n_tokens will run, so that its time is that of evaluation."""
        with self._exclusive:
            for n in set(_chunks(self.length(seq), n_tokens)):
                self._step(n, 1, "last", False, _chunk_kind(n))

    def decode(self, token: int, seq: int = 0) -> np.ndarray:
        """Evaluate one token; its logits f32 [n_vocab], valid until the next pass."""
        return self.evaluate([(seq, (token,))]).logits[0]

    def _make_memory(self, states: Iterable[str]) -> Memory:
        recurrent = [n for n in states if n.startswith(("conv_state.", "ssm_state."))]
        if not recurrent:
            return self._kv
        rows = RecurrentMemory(self.n_seqs, self.pools, recurrent)
        return HybridMemory([self._kv, rows])

    def _check(self, items: Items, want: str) -> int:
        if want not in ("last", "all"):
            raise RequestError(f"want should be 'last' or 'all', got {want!r}")
        n_vocab, seen, total = self.model.n_vocab, set(), 0
        for seq, tokens in items:
            if not 0 <= seq < self.n_seqs or seq in seen:
                raise RequestError(
                    f"sequences should be distinct and from 0 to {self.n_seqs - 1}, got {seq}"
                )
            seen.add(seq)
            if not len(tokens):
                raise RequestError(f"sequence {seq} has no tokens to evaluate")
            for token in tokens:
                if not 0 <= token < n_vocab:
                    raise RequestError(f"token ids are from 0 to {n_vocab - 1}, got {token}")
            total += len(tokens)
        if not 1 <= total <= MAX_TOKENS:
            raise RequestError(f"a pass takes 1 to {MAX_TOKENS} tokens, got {total}")
        return total

    def _step(self, total: int, n_items: int, want: str, hidden: bool, kind: str) -> BoundStep:
        """The step for these sizes, compiled and bound when first asked for."""
        key = (total, n_items, want, hidden, kind)
        step = self._steps.get(key)
        if step is None:
            n, b = token_bucket(total), sequence_bucket(n_items, self.n_seqs)
            wants_all = want == "all" or total == n_items
            shape = StepShape(n, b, n if wants_all else b, hidden)
            step = self._steps[key] = BoundStep(self._bind(shape, kind))
        return step

    def _bind(self, shape: StepShape, kind: str) -> BoundPlan:
        key = (shape, kind)
        if key not in self._bound:
            plan = self.model.plan(shape, self.capacity, kind)
            self._bound[key] = plan.bind(self.model.weights, self.pools)
        return self._bound[key]

    def _abandon(self, items: Items) -> None:
        """After a failed pass: drop what was reserved; what may be half written is cleared."""
        for seq, _ in items:
            if self.memory.can_commit(seq, 0):
                self.memory.commit(seq, 0)
            else:
                self.memory.commit(seq, self.memory.pending(seq))
                self.memory.remove(seq, 0)


def _chunks(length: int, n: int) -> Iterator[int]:
    """Sizes of the passes for n tokens after `length`: they end at multiples of MAX_TOKENS."""
    while n > 0:
        size = min(MAX_TOKENS - length % MAX_TOKENS, n)
        yield size
        length, n = length + size, n - size


def _chunk_kind(n: int) -> str:
    return "prefill" if n > 1 else "step"


def check_context(n_ctx: int | None, n_ctx_train: int) -> int:
    """The context to use: asked for, or the model's own up to 4096. Raises RequestError."""
    if n_ctx is None:
        return max(1, min(n_ctx_train or 4096, 4096))
    if n_ctx < 1:
        raise RequestError(f"the context size should be 1 or more, got {n_ctx}")
    return n_ctx


def _cache_type(argument: str, name: str) -> DType:
    if name not in CACHE_TYPES:
        raise DTypeError(f"{argument} should be one of {', '.join(CACHE_TYPES)}, got {name!r}")
    return dtype(name)
