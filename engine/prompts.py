"""Prompts: where they are cut into passes, and these passes one by one.

Cuts depend on positions in the sequence alone, never on what else runs: a token goes through the
same kernels whoever else is there, and a prompt continued from a kept state is cut like a whole
one. Where cuts change no value, they are free."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from ..graph.errors import RequestError
from ..models.step import StepShape
from .buckets import MAX_TOKENS
from .items import checked_ids
from .prompt_states import SHORT
from .rows import Pass

if TYPE_CHECKING:
    from .model import Model
    from .sequences import Sequences
    from .session_plan import SessionPlan

# A prompt of at least WORTH_KEEPING tokens keeps its recurrent state LAST tokens before its end;
# one of SHORT tokens where that takes a pass of many rows, at a multiple of the grid.
WORTH_KEEPING, LAST = 64, 4
# Rows of a pass, with padding, where prompts are cut freely: fewer run other kernels on cards.
LEAST_ROWS = 128


def cuts(length: int, n: int, chunk: int, early: bool = False, grid: int = 1) -> Iterator[int]:
    """Sizes of the passes of n tokens after `length`: they end at absolute multiples of `chunk`.

    early: also stop a few tokens before the end, where a state that is kept serves the same prompt
    and those that only end differently. Where a prompt is cut, at multiples of `grid`, must not
    change its values then; one that begins between these goes to the next one first."""
    end, first = length + n, min(-length % grid, n)
    before = (end - LAST) // grid * grid - length if early else 0
    worth = n >= (WORTH_KEEPING if grid == 1 else SHORT)
    before = before if worth and before > first else first
    yield from _aligned(length, first, chunk)
    yield from _aligned(length + first, before - first, chunk)
    yield from _aligned(length + before, n - before, chunk)


def _aligned(length: int, n: int, chunk: int) -> Iterator[int]:
    while n > 0:
        size = min(chunk - length % chunk, n)
        yield size
        length, n = length + size, n - size


def pass_kind(n: int) -> str:
    """The kind of plan that a prompt's pass of n tokens runs."""
    return "prefill" if n > 1 else "step"


def prompt_grid(model: Model, plan: SessionPlan) -> int:
    """At multiples of how many positions passes over prompts of a session may end, and hold several
    prompts, without a change of any value; 0 for none."""
    if model.backend.capabilities.prompt_exact:
        return 1
    # Where no kernel promises more than the others, plans need not be asked.
    if not any(k["prompt_exact"] and not k["row_exact"] for k in model.backend.kernels):
        return 0
    few, many = (
        model.plan(StepShape(n, 1, 1), plan.capacity, "prefill", plan.options.program)
        for n in (LEAST_ROWS, plan.chunk)
    )
    both = few.prompt_grid and many.prompt_grid and few.chosen == many.chosen
    return max(few.prompt_grid, many.prompt_grid) if both else 0


class Prompt:
    """A prompt on its way into a sequence, behind what that holds. How far it has come follows
    from the sequence, so a pass that failed is made again by the next call of `step`.

    most: tokens of its next pass at most, where cuts are free; waited: passes that others got."""

    def __init__(
        self,
        sequences: Sequences,
        seq: int,
        tokens: Sequence[int],
        hidden: bool = False,
        behind: Sequence[int] = (),
    ) -> None:
        """hidden: passes give hidden rows; behind: tokens that were generated behind the prompt,
        which take the kernels of decoding once more. Raises RequestError where there are no tokens
        at all, for ids outside the vocabulary, or a context that is too small."""
        self.sequences, self.seq, self.hidden = sequences, seq, hidden
        self.tokens = checked_ids(tokens, sequences.model.n_vocab)
        self.behind, self.waited, self.most = list(behind), 0, sequences.storage.chunk
        self.start = sequences.length(seq)
        self._check_room()
        self.ends = list(accumulate(sequences.cuts(seq, len(self.tokens)), initial=self.start))[1:]

    @property
    def end(self) -> int:
        """Tokens of the sequence with all of it."""
        return self.start + len(self.tokens) + len(self.behind)

    @property
    def done(self) -> bool:
        """Whether all of it is evaluated."""
        return self.sequences.evaluated(self.seq) == self.end

    @property
    def last(self) -> bool:
        """Whether the next pass is the last one."""
        at = self.sequences.evaluated(self.seq)
        return at >= self.start and at + self.size == self.end

    @property
    def urgency(self) -> int:
        """Passes that are left, less those that others have got meanwhile."""
        left = self.end - self.sequences.evaluated(self.seq)
        return -(-left // self.sequences.storage.chunk) - self.waited

    @property
    def size(self) -> int:
        """Tokens of the next pass."""
        at = self.sequences.evaluated(self.seq)
        if at < self.start:
            return min(self.start - at, MAX_TOKENS)
        return len(self.part) or min(self.end - at, MAX_TOKENS)

    @property
    def part(self) -> Sequence[int]:
        """The tokens of the next pass, where that is one over the prompt itself."""
        at, end = self.sequences.evaluated(self.seq), 0
        if at >= self.start:
            end = next((end for end in self.ends if end > at), 0)
            if end - at > self.most and self.sequences.storage.cuts_freely:
                end = (at // self.most + 1) * self.most
        return self.tokens[at - self.start : end - self.start] if end else ()

    def step(self) -> tuple[Sequence[int], Pass]:
        """The next pass, and its tokens: those that are due in the sequence come first."""
        sequences, seq = self.sequences, self.seq
        part = self.part
        if part:
            found = sequences.evaluate([(seq, part)], hidden=self.hidden, kind=self.kind)
            self.keep()
            return part, found
        if sequences.evaluated(seq) >= self.start:
            missing = self.end - sequences.length(seq)
            if missing:
                sequences.append(seq, self.behind[-missing:])
        return sequences.evaluate_due(seq, self.hidden)

    @property
    def kind(self) -> str:
        """The kind of plan that the next pass over the prompt itself runs."""
        return self.sequences.prompt_kind(len(self.part))

    def keep(self) -> None:
        """Behind a pass over the prompt itself: keep the state there, where it is worth it."""
        if self.sequences.evaluated(self.seq) < self.ends[-1]:
            self.sequences.storage.remember(self.seq, self.ends[-1])

    def _check_room(self) -> None:
        n, n_ctx = len(self.tokens) + len(self.behind), self.sequences.n_ctx
        if not n:
            raise RequestError("the prompt has no tokens; give at least one")
        if self.start + n > n_ctx:
            before = f"the sequence has {self.start} tokens, and " if self.start else ""
            raise RequestError(
                f"{before}the prompt's {n} tokens do not fit in a context of {n_ctx}; use a larger "
                "context (n_ctx) or a shorter prompt"
            )
