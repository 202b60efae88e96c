"""A session: the memory of one or several sequences over a model, and the passes through it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..backends import BoundPlan
from ..graph.errors import RequestError, SessionBusy
from ..models.step import StepShape
from .bound_step import BoundStep, Items, Part
from .buckets import MAX_TOKENS, TOKENS, sequence_bucket, token_bucket
from .memory import Reservation
from .session_memory import SessionMemory
from .session_plan import SessionOptions, SessionPlan, plan_session

if TYPE_CHECKING:
    from .model import Model

# More tokens than this that have to run again get a pass of their own: in front of others they
# would run again and again while drafts are rejected.
MOST_AGAIN = 16
# A prompt of at least WORTH_KEEPING tokens keeps its recurrent state LAST tokens before its end.
WORTH_KEEPING, LAST = 64, 4
NO_TOKENS: tuple[int, ...] = ()


@dataclass(frozen=True)
class Pass:
    """What a pass gives: logits f32 [M, n_vocab] of the rows that wanted them, in the order of the
    items; hidden f32 [N, n_embd] of all new tokens when asked for.

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

    def __init__(self, model: Model, plan: SessionPlan | None = None) -> None:
        self.model = model
        self.plan = plan or plan_session(model, SessionOptions())
        self.n_ctx, self.n_seqs = self.plan.n_ctx, self.plan.options.n_seqs
        self.capacity, self.program = self.plan.capacity, self.plan.options.program
        self._held = SessionMemory(self.plan, model.backend)
        self.pools, self.memory = self._held.pools, self._held.memory
        self._tokens: list[list[int]] = [[] for _ in range(self.n_seqs)]
        self._bound: dict[tuple[StepShape, str, str], BoundPlan] = {}
        self._steps: dict[tuple[object, ...], BoundStep] = {}
        self._exclusive = OneThread()
        self._head = self.plan.options.draft_head
        self._step(1, 1, 1, False, "step")

    def length(self, seq: int = 0) -> int:
        """Tokens that a sequence holds; drafts that are not committed do not count."""
        self._check_seq(seq)
        return self.memory.length(seq)

    @property
    def host_bytes(self) -> int:
        """Bytes that rollback has copied between state and host memory so far."""
        return self._held.recurrent.host_bytes if self._held.recurrent else 0

    @property
    def copy_s(self) -> float:
        """Seconds that rollback's copies of states have taken so far."""
        return self._held.recurrent.copy_s if self._held.recurrent else 0.0

    def folded(self, seq: int = 0) -> int:
        """Tokens of earlier passes that the last pass brought into the recurrent state."""
        return self._held.recurrent.folded(seq) if self._held.recurrent else 0

    def tokens(self, seq: int = 0) -> list[int]:
        """The tokens that a sequence holds."""
        self._check_seq(seq)
        return self._tokens[seq][: self.memory.length(seq)]

    def clear(self, seq: int = 0) -> None:
        """Forget a sequence, pending tokens included."""
        self._check_seq(seq)
        with self._exclusive:
            self._drop_pending(seq)
            self._remove(seq, 0)

    def evaluate(
        self,
        items: Items,
        want: str = "last",
        hidden: bool = False,
        kind: str = "step",
        extra: Mapping[str, np.ndarray] | None = None,
    ) -> Pass:
        """One pass over new tokens of some sequences: [(sequence, token ids), ...]. All stay.

        want: "last" gives logits of each sequence's last token, in the order of items; "all" of
        every token; "none" none. extra: inputs of the program, a row for each token. Raises
        RequestError, before anything changes, for ids outside the vocabulary, a full context, or
        more than 512 tokens."""
        with self._exclusive:
            sure = [len(tokens) for _, tokens in items]
            found = self._pass(items, sure, want, hidden, kind, extra)
            for seq, tokens in items:
                self.memory.commit(seq, len(tokens))
            return found

    def verify(
        self,
        items: Items,
        sure: Sequence[int] | None = None,
        want: str = "all",
        hidden: bool = False,
        extra: Mapping[str, np.ndarray] | None = None,
    ) -> Pass:
        """One pass whose tokens are pending until `commit` says how many of them stay.

        sure: how many leading tokens of each item will certainly stay, by default none; that
        spares what forgetting them would cost. Raises what `evaluate` raises."""
        with self._exclusive:
            return self._pass(items, sure or [0] * len(items), want, hidden, "step", extra)

    def can_commit(self, seq: int, n: int) -> bool:
        """Whether the first n pending tokens of a sequence can stay and the others go."""
        self._check_seq(seq)
        return self.memory.can_commit(seq, n)

    def commit(self, seq: int, n: int) -> None:
        """Keep the first n pending tokens, forget the others.

        Raises RequestError, and changes nothing, if the memory cannot forget so many."""
        self._check_seq(seq)
        with self._exclusive:
            self.memory.commit(seq, n)
            del self._tokens[seq][self.memory.length(seq) :]

    def can_remove(self, seq: int, start: int) -> bool:
        """Whether the tokens from position start on can be forgotten."""
        self._check_seq(seq)
        return self.memory.can_remove(seq, start)

    def remove(self, seq: int, start: int) -> None:
        """Forget the tokens from position start on. Raises RequestError, and changes nothing, if
        the memory cannot."""
        self._check_seq(seq)
        with self._exclusive:
            self._remove(seq, start)

    def settle(self, seq: int = 0) -> None:
        """Complete what rollback has put off, so that the state holds all committed tokens.

        Raises RequestError while tokens are pending."""
        self._check_seq(seq)
        with self._exclusive:
            self._settle(seq)

    def copy(self, src: int, dst: int) -> None:
        """Let the empty sequence dst go on from what src holds; attention pages are shared until
        one of them writes. Raises RequestError when dst is not empty or tokens are pending."""
        self._check_seq(src, dst)
        with self._exclusive:
            self._settle(src)
            self.memory.copy(src, dst)
            self._tokens[dst] = list(self._tokens[src])

    def save(self, seq: int = 0) -> bytes:
        """Everything that a sequence holds, for `restore`."""
        self._check_seq(seq)
        with self._exclusive:
            self._settle(seq)
            return self._held.save(self.model.fingerprint, seq, self._tokens[seq])

    def restore(self, data: bytes, seq: int = 0) -> None:
        """Bring back what `save` gave, in a session over the same model and memory types.

        Raises RequestError, and changes nothing, for data that are damaged or of another model or
        when the sequence is not empty."""
        self._check_seq(seq)
        with self._exclusive:
            self._tokens[seq] = self._held.restore(
                self.model.fingerprint, seq, data, self.model.n_vocab
            )

    def reuse(self, tokens: Sequence[int], seq: int = 0) -> int:
        """Keep of a sequence what it shares with the start of a prompt, so that only the rest
        of the prompt, one token at least, is left to evaluate; returns the number kept.

        A recurrent state goes back to the nearest one that was kept on the way."""
        self._check_seq(seq)
        with self._exclusive:
            self._drop_pending(seq)
            old, common = self._tokens[seq], 0
            for a, b in zip(old, tokens[:-1], strict=False):
                if a != b:
                    break
                common += 1
            kept = self._held.reuse(seq, common).kept
            del old[kept:]
            self._held.forget_states(seq, kept)
            return kept

    def prefill(self, tokens: Sequence[int], seq: int = 0) -> np.ndarray:
        """Evaluate a prompt in chunks; logits f32 [n_vocab] of its last token.

        Chunks end at absolute multiples of 512 positions, so that a prompt continued from a
        prefix is cut like a whole one. Raises RequestError when the context is too small."""
        logits = np.empty(0, np.float32)
        for _, found in self.chunks(tokens, seq):
            logits = found.logits[0]
        return logits

    def chunks(
        self, tokens: Sequence[int], seq: int = 0, hidden: bool = False
    ) -> Iterator[tuple[Sequence[int], Pass]]:
        """The passes of `prefill`, each with its tokens. Raises what prefill raises."""
        if not len(tokens):
            raise RequestError("the prompt has no tokens; give at least one")
        length = self.length(seq)
        if length + len(tokens) > self.n_ctx:
            raise RequestError(
                f"the prompt's {length + len(tokens)} tokens do not fit in a context of "
                f"{self.n_ctx}; use a larger context (-c) or a shorter prompt"
            )
        start = 0
        for n in self._cuts(length, len(tokens)):
            part = tokens[start : start + n]
            yield part, self.evaluate([(seq, part)], hidden=hidden, kind=_chunk_kind(n))
            start += n
            if start < len(tokens):
                self._held.remember(seq, length + len(tokens))

    def prepare(self, n_tokens: int, seq: int = 0, hidden: bool = False) -> None:
        """Compile what a prompt of n_tokens will run, so that its time is that of evaluation."""
        with self._exclusive:
            for n in set(self._cuts(self.length(seq), n_tokens)):
                self._step(n, 1, 1, hidden, _chunk_kind(n))

    def prepare_steps(self, most: int, hidden: bool = False) -> None:
        """Compile what passes of up to `most` tokens of one sequence will run."""
        with self._exclusive:
            for n in _buckets(1, most):
                self._step(n, 1, 1, hidden, "step")

    def prepare_drafts(self, most: int, hidden: bool = False) -> None:
        """Compile what verifying up to `most` drafts of some or all sequences will run."""
        recurrent = self._held.recurrent
        again = MOST_AGAIN if recurrent and recurrent.reruns else 0
        with self._exclusive:
            for items in range(1, self.n_seqs + 1):
                for n in _buckets(items, items * (most + 1 + again)):
                    self._step(n, items, n, hidden, "step")
            for n in _buckets(1, again + most) if again else ():
                self._step(n, 1, 0, False, "step")
            if self.capacity.log:
                self._fold_step()

    def decode(self, token: int, seq: int = 0) -> np.ndarray:
        """Evaluate one token; its logits f32 [n_vocab], valid until the next pass."""
        return self.evaluate([(seq, (token,))]).logits[0]

    def _cuts(self, length: int, n: int) -> Iterator[int]:
        """Sizes of a prompt's passes. Where memory cannot go back, one ends a few tokens before the
        end, so that the same prompt, or one that only ends differently, can go on from there."""
        early = n - LAST if self._held.remembers_last(LAST) and n >= WORTH_KEEPING else 0
        yield from _chunks(length, early)
        yield from _chunks(length + early, n - early)

    def _pass(
        self,
        items: Items,
        sure: Sequence[int],
        want: str,
        hidden: bool,
        kind: str,
        extra: Mapping[str, np.ndarray] | None,
    ) -> Pass:
        total = self._check(items, sure, want)
        again = self._run_again(items, total)
        parts = [self._part(seq, tokens, n) for (seq, tokens), n in zip(items, again, strict=True)]
        batch = [
            Reservation(seq, len(tokens), n_sure, n)
            for (seq, tokens), n_sure, n in zip(items, sure, again, strict=True)
        ]
        wanted = _wanted(parts, want)
        total += sum(again)
        # Drafts take the plans of all rows, so that tokens to run again need none of their own.
        n_out = total if want == "all" else len(wanted)
        step = self._step(total, len(items), n_out, hidden, kind)
        self._run(step, parts, batch, total, wanted, extra)
        outputs = step.bound.outputs
        new = range(total) if not any(again) else _wanted(parts, "all")
        return Pass(
            _rows(outputs["logits"], range(len(wanted)) if step.out_rows is not None else wanted)
            if wanted
            else np.empty((0, self.model.n_vocab), np.float32),
            _rows(outputs["hidden"], new) if hidden else None,
        )

    def _run(
        self,
        step: BoundStep,
        parts: Sequence[Part],
        batch: Sequence[Reservation],
        total: int,
        wanted: Sequence[int] = NO_TOKENS,
        extra: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Reserve, fill, run; after a failure what may be half written is due to run again."""
        self.memory.reserve(batch)
        try:
            step.fill(parts, total)
            step.fill_out_rows(wanted)
            if extra:
                step.fill_extra(extra)
            step.bound.run(total)
        except BaseException:
            for item in batch:
                self.memory.lose(item.seq)
                del self._tokens[item.seq][self.memory.length(item.seq) :]
            raise
        for part in parts:
            self._tokens[part.seq].extend(part.tokens[part.again :])

    def _part(self, seq: int, tokens: Sequence[int], again: int) -> Part:
        old = self._tokens[seq]
        first = len(old) - again
        return Part(seq, [*old[first:], *tokens] if again else tokens, again, first)

    def _run_again(self, items: Items, total: int) -> list[int]:
        """How many committed tokens each item takes in front; more than a few run here."""
        again = [self.memory.rerun(seq) for seq, _ in items]
        if total + sum(again) > MAX_TOKENS or max(again) > MOST_AGAIN:
            for seq, _ in items:
                self._catch_up(seq)
            return [0] * len(items)
        return again

    def _catch_up(self, seq: int) -> None:
        """Run committed tokens again until the state holds them all."""
        while self.memory.rerun(seq):
            due = self.memory.rerun(seq)
            n = min(due, MAX_TOKENS)
            part = self._part(seq, NO_TOKENS, due)
            part = Part(seq, part.tokens[:n], n, part.first)
            step = self._step(n, 1, 0, False, "step")
            self._run(step, [part], [Reservation(seq, 0, 0, n)], n)

    def _settle(self, seq: int) -> None:
        if self.memory.pending(seq):
            raise RequestError(
                f"sequence {seq}: {self.memory.pending(seq)} tokens are pending; commit them first"
            )
        self._catch_up(seq)
        if self.memory.unsettled(seq):
            part = Part(seq, NO_TOKENS, 0, self.length(seq))
            self._run(self._fold_step(), [part], [Reservation(seq, 0)], 0)

    def _remove(self, seq: int, start: int) -> None:
        self.memory.remove(seq, start)
        del self._tokens[seq][start:]
        self._held.forget_states(seq, start)

    def _drop_pending(self, seq: int) -> None:
        """Forget pending tokens, and with them whatever cannot be kept without them."""
        if self.memory.pending(seq):
            if self.memory.can_commit(seq, 0):
                self.memory.commit(seq, 0)
            else:
                self.memory.lose(seq)
            del self._tokens[seq][self.memory.length(seq) :]

    def _check(self, items: Items, sure: Sequence[int], want: str) -> int:
        if want not in ("last", "all", "none"):
            raise RequestError(f"want should be 'last', 'all' or 'none', got {want!r}")
        if len(sure) != len(items):
            raise RequestError(
                f"sure should have {len(items)} numbers, one an item, got {len(sure)}"
            )
        n_vocab, seen, total = self.model.n_vocab, set(), 0
        for (seq, tokens), n_sure in zip(items, sure, strict=True):
            self._check_seq(seq)
            if seq in seen:
                raise RequestError(f"the sequences of a pass should be distinct, got {seq} twice")
            seen.add(seq)
            if not len(tokens):
                raise RequestError(f"sequence {seq} has no tokens to evaluate")
            if not 0 <= n_sure <= len(tokens):
                raise RequestError(f"sure should be 0 to {len(tokens)} tokens, got {n_sure}")
            if n_sure and self.memory.pending(seq):
                raise RequestError(
                    f"sequence {seq}: {self.memory.pending(seq)} tokens are pending, so no later "
                    "one is sure; commit them first"
                )
            for token in tokens:
                if not 0 <= token < n_vocab:
                    raise RequestError(f"token ids are from 0 to {n_vocab - 1}, got {token}")
            total += len(tokens)
        if not 1 <= total <= MAX_TOKENS:
            raise RequestError(f"a pass takes 1 to {MAX_TOKENS} tokens, got {total}")
        return total

    def _check_seq(self, *seqs: int) -> None:
        for seq in seqs:
            if not 0 <= seq < self.n_seqs:
                raise RequestError(f"sequences are from 0 to {self.n_seqs - 1}, got {seq}")

    def _step(self, total: int, n_items: int, wanted: int, hidden: bool, kind: str) -> BoundStep:
        """The step for these sizes, compiled and bound when first asked for."""
        key = (total, n_items, wanted, hidden, kind)
        step = self._steps.get(key)
        if step is None:
            n, b = token_bucket(total), sequence_bucket(n_items, self.n_seqs)
            out = n if wanted == total else wanted and min(n, token_bucket(max(wanted, b)))
            # A graph has an output, and without logits that is the hidden rows.
            shape = StepShape(n, b, out, hidden or not out, self._head)
            bound = self._bind(shape, kind, self.program)
            step = self._steps[key] = self._held.step(bound)
        return step

    def _fold_step(self) -> BoundStep:
        if ("folds",) not in self._steps:
            bound = self._bind(StepShape(1, 1, 1), "step", "folds")
            self._steps["folds",] = self._held.step(bound)
        return self._steps["folds",]

    def _bind(self, shape: StepShape, kind: str, program: str) -> BoundPlan:
        key = (shape, kind, program)
        if key not in self._bound:
            plan = self.model.plan(shape, self.capacity, kind, program)
            self._bound[key] = plan.bind(self.model.weights, self.pools)
        return self._bound[key]


def _wanted(parts: Sequence[Part], want: str) -> list[int]:
    """The rows of a pass that get logits."""
    if want == "none":
        return []
    rows: list[int] = []
    at = 0
    for part in parts:
        end = at + len(part.tokens)
        rows.extend([end - 1] if want == "last" else range(at + part.again, end))
        at = end
    return rows


def _rows(array: np.ndarray, rows: Sequence[int]) -> np.ndarray:
    """Ascending rows of an array: a view where they are adjacent."""
    first, n = rows[0], len(rows)
    return array[first : first + n] if rows[-1] - first == n - 1 else array[list(rows)]


def _chunks(length: int, n: int) -> Iterator[int]:
    """Sizes of the passes for n tokens after `length`: they end at multiples of MAX_TOKENS."""
    while n > 0:
        size = min(MAX_TOKENS - length % MAX_TOKENS, n)
        yield size
        length, n = length + size, n - size


def _buckets(least: int, most: int) -> list[int]:
    """The buckets of passes of least to most tokens."""
    return [n for n in TOKENS if least <= n <= token_bucket(min(most, MAX_TOKENS))]


def _chunk_kind(n: int) -> str:
    return "prefill" if n > 1 else "step"
