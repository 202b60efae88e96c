"""Passes through the model over the sequences of a session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..graph.errors import RequestError, SequenceLost
from ..models.step import Choice
from .bound_step import BoundStep, Extra, Items, Part
from .buckets import MAX_TOKENS
from .draws import drawing
from .items import checked_ids, checked_integer
from .memory import Reservation
from .prompts import prompt_grid
from .rows import NOTHING, Pass, Wanted, gather, wanted_rows
from .runner import Runner
from .sampler import DeviceDraw
from .session_memory import SessionMemory
from .session_plan import SessionPlan

if TYPE_CHECKING:
    from .model import Model

# More tokens than this that have to run again get a pass of their own: in front of others they
# would run again and again while drafts are rejected.
MOST_AGAIN = 16
WANTS = ("last", "all", "none")
NO_TOKENS: tuple[int, ...] = ()


class Passes:
    """Evaluates tokens of n_seqs sequences of up to n_ctx each.

    A token is committed, pending (evaluated, and to be committed or forgotten), or due: part of
    the text, and evaluated in front of the sequence's next pass. An exception inside a call leaves
    each sequence as it was or lost, and sequences that the call does not concern as they are; a
    lost one raises SequenceLost until it is cleared."""

    def __init__(self, model: Model, plan: SessionPlan, runner: type[Runner] = Runner) -> None:
        model.source.check_unchanged()
        self.model, self.plan = model, plan
        self.n_ctx, self.n_seqs = plan.n_ctx, plan.options.n_seqs
        self.storage = SessionMemory(plan, model.backend, prompt_grid(model, plan))
        self.pools, self.memory = self.storage.pools, self.storage.memory
        self.runner = runner(model, plan, self.storage)
        self._tokens: list[list[int]] = [[] for _ in range(self.n_seqs)]
        self._due: list[list[int]] = [[] for _ in range(self.n_seqs)]
        # Sequences that a call is changing; one that an exception left here is lost.
        self._changing: set[int] = set()
        self.runner.prepare_step(1, 1, 1)

    def evaluate(
        self,
        items: Items,
        want: str = "last",
        hidden: bool = False,
        kind: str = "step",
        extra: Extra | None = None,
        candidates: int = 1,
        choice: Choice | None = None,
    ) -> Pass:
        """One pass over new tokens of some sequences: [(sequence, token ids), ...]. All stay.

        want: "last" gives logits of each sequence's last token, in the order of items; "all" of
        every token; "none" none. extra: inputs of the program by name, arrays that hold a row for
        each token together; candidates: more than 1 for shortlists of so many; choice: what is
        given instead of logits, as shortlists. Raises RequestError,
        before anything changes, for ids outside the vocabulary, a full context, or more tokens than
        a pass takes: 512, of kind "prefill" the plan's `chunk`."""
        items = self._checked(items, want, self._most(kind))
        sure = [len(ids) for _, ids in items]
        for seq, _ in items:
            self.require_none_pending(seq)
            self._evaluate_all_due(seq)
        return self._pass(items, sure, want, hidden, kind, extra, True, candidates, choice)

    def verify(
        self,
        items: Items,
        sure: Sequence[int] | None = None,
        want: str = "all",
        hidden: bool = False,
        extra: Extra | None = None,
        choice: Choice | None = None,
        draws: Sequence[DeviceDraw | None] = (),
    ) -> Pass:
        """One pass whose tokens are pending until `commit` says how many of them stay.

        sure: how many leading tokens of each item will certainly stay, by default none; that
        spares what forgetting them would cost. choice: as for `evaluate`; draws: for each item how
        the device is to draw a token behind each of its rows, None for those whose logits are
        wanted; where all are, nothing is drawn. For want="all". Raises what `evaluate` raises."""
        items = self._checked(items, want, MAX_TOKENS)
        sure = [0] * len(items) if sure is None else sure
        self._check_sure(items, sure)
        for seq, _ in items:
            self._evaluate_all_due(seq)
        return self._pass(items, sure, want, hidden, "step", extra, choice=choice, draws=draws)

    def can_commit(self, seq: int, n: int) -> bool:
        """Whether the first n pending tokens of a sequence can stay and the others go."""
        return self.memory.can_commit(self._usable(seq), n)

    def commit(self, seq: int, n: int) -> None:
        """Keep the first n pending tokens, forget the others.

        Raises RequestError, and changes nothing, if the memory cannot forget so many."""
        seq, n = self._usable(seq), checked_integer(n, "the number of tokens to keep")
        self._changing.add(seq)
        try:
            self.memory.commit(seq, n)
        except RequestError:
            self._changing.discard(seq)
            raise
        del self._tokens[seq][self.memory.length(seq) :]
        self._changing.discard(seq)

    def settle(self, seq: int = 0) -> None:
        """Complete what rollback has put off and evaluate what is due, so that the state holds all
        tokens. Raises RequestError while tokens are pending."""
        seq = self._usable(seq)
        self.require_none_pending(seq)
        self._evaluate_all_due(seq)
        self.catch_up(seq)
        if self.memory.unsettled(seq):
            part = Part(seq, NO_TOKENS, 0, self.memory.length(seq))
            self._run(self.runner.fold_step(), [part], [Reservation(seq, 0)], 0)

    def evaluate_due(self, seq: int, hidden: bool = False) -> tuple[Sequence[int], Pass]:
        """A pass over the first of the tokens that are due; these, and what it gives. They were
        chosen while decoding, so they take the kernels of decoding."""
        seq = self._usable(seq)
        due = self._due[seq][:MAX_TOKENS]
        if not due:
            raise RequestError(f"sequence {seq} has no tokens that are due")
        return due, self._pass([(seq, due)], [len(due)], "last", hidden, "step", stay=True)

    def _evaluate_all_due(self, seq: int) -> None:
        while self._due[seq]:
            self.evaluate_due(seq)

    def _pass(
        self,
        items: Items,
        sure: Sequence[int],
        want: str,
        hidden: bool,
        kind: str,
        extra: Extra | None = None,
        stay: bool = False,
        candidates: int = 1,
        choice: Choice | None = None,
        draws: Sequence[DeviceDraw | None] = (),
    ) -> Pass:
        total = sum(len(ids) for _, ids in items)
        again = self._run_again(items, total, self._most(kind))
        parts = [self._part(seq, tokens, n) for (seq, tokens), n in zip(items, again, strict=True)]
        batch = [
            Reservation(seq, len(tokens), n_sure, n)
            for (seq, tokens), n_sure, n in zip(items, sure, again, strict=True)
        ]
        total += sum(again)
        wanted = Wanted.of(parts, want, choice is None, draws)
        if wanted.draws:
            choice = drawing(self.model, draws, len(wanted.shown))
        # Drafts take the plans of all rows, so that tokens to run again need none of their own.
        n_out = total if want == "all" else len(wanted.rows)
        step = self.runner.step(total, len(items), n_out, hidden, kind, candidates, choice)
        self._run(step, parts, batch, total, wanted, extra, stay)
        new = wanted_rows(parts, "all") if any(again) else range(total)
        return gather(step, wanted, new if hidden else None, self.model.n_vocab)

    def _run(
        self,
        step: BoundStep,
        parts: Sequence[Part],
        batch: Sequence[Reservation],
        total: int,
        wanted: Wanted = NOTHING,
        extra: Extra | None = None,
        stay: bool = False,
    ) -> None:
        """Reserve, fill, run, and commit what is to stay; after a failure what may be half written
        has to run again."""
        seqs = [item.seq for item in batch]
        self._changing.update(seqs)
        try:
            self.memory.reserve(batch)
        except RequestError:
            self._changing.difference_update(seqs)
            raise
        try:
            step.fill(parts, total)
            step.fill_out_rows(wanted.rows, wanted.shown)
            step.fill_draws(wanted.draws)
            if extra:
                step.fill_extra(extra)
            step.bound.run(total)
        except BaseException:
            for seq in seqs:
                self._lose(seq)
            raise
        for part in parts:
            self._tokens[part.seq].extend(part.tokens[part.again :])
        if stay:
            self.memory.commit_all(batch)
            for item in batch:
                del self._due[item.seq][: item.n]
        self._changing.difference_update(seqs)

    def _lose(self, seq: int) -> None:
        """A pass failed half way: go back to the committed tokens."""
        self.memory.lose(seq)
        self._forget_behind(seq)

    def _forget_behind(self, seq: int) -> None:
        """Forget all tokens that the memory does not hold; ends a change of the sequence."""
        length = self.memory.length(seq)
        del self._tokens[seq][length:]
        self.storage.forget_states(seq, length)
        self._changing.discard(seq)

    def _part(self, seq: int, tokens: Sequence[int], again: int) -> Part:
        old = self._tokens[seq]
        first = len(old) - again
        return Part(seq, [*old[first:], *tokens] if again else tokens, again, first)

    def _most(self, kind: str) -> int:
        """Tokens of a pass."""
        return self.plan.chunk if kind == "prefill" else MAX_TOKENS

    def _run_again(self, items: Items, total: int, most: int) -> list[int]:
        """How many committed tokens each item takes in front; more than a few run here."""
        again = [self.memory.rerun(seq) for seq, _ in items]
        if total + sum(again) > most or max(again) > MOST_AGAIN:
            for seq, _ in items:
                self.catch_up(seq)
            return [0] * len(items)
        return again

    def catch_up(self, seq: int) -> None:
        """Run committed tokens again until the state holds them all."""
        while self.memory.rerun(seq):
            due = self.memory.rerun(seq)
            n = min(due, MAX_TOKENS)
            part = self._part(seq, NO_TOKENS, due)
            part = Part(seq, part.tokens[:n], n, part.first)
            self._run(self.runner.step(n, 1, 0), [part], [Reservation(seq, 0, 0, n)], n)

    def _checked(self, items: Items, want: str, most: int) -> Items:
        if want not in WANTS:
            raise RequestError(f"want should be one of {', '.join(WANTS)}, got {want!r}")
        n_vocab = self.model.n_vocab
        checked = [(self._usable(seq), checked_ids(ids, n_vocab)) for seq, ids in items]
        total, seen = 0, set()
        for seq, ids in checked:
            if seq in seen:
                raise RequestError(f"the sequences of a pass should be distinct, got {seq} twice")
            seen.add(seq)
            if not ids:
                raise RequestError(f"sequence {seq} has no tokens to evaluate")
            total += len(ids)
        if not 1 <= total <= most:
            raise RequestError(f"a pass takes 1 to {most} tokens, got {total}")
        return checked

    def _check_sure(self, items: Items, sure: Sequence[int]) -> None:
        if len(sure) != len(items):
            raise RequestError(
                f"sure should have {len(items)} numbers, one an item, got {len(sure)}"
            )
        for (seq, ids), n in zip(items, sure, strict=True):
            if not 0 <= n <= len(ids):
                raise RequestError(f"sure should be 0 to {len(ids)} tokens, got {n}")
            if n:
                self.require_none_pending(seq, "so no later one is sure; ")

    def require_none_pending(self, seq: int, so: str = "") -> None:
        """Raise RequestError while tokens of a sequence are pending."""
        if self.memory.pending(seq):
            raise RequestError(
                f"sequence {seq}: {self.memory.pending(seq)} tokens are pending, {so}commit first"
            )

    def _sequence(self, seq: int) -> int:
        number = checked_integer(seq, "a sequence")
        if not 0 <= number < self.n_seqs:
            raise RequestError(f"sequences are from 0 to {self.n_seqs - 1}, got {number}")
        return number

    def _usable(self, seq: int) -> int:
        number = self._sequence(seq)
        if number in self._changing:
            raise SequenceLost(
                f"sequence {number} was lost when an exception broke off a call that changed it; "
                "clear it and evaluate its tokens again"
            )
        return number
