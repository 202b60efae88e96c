"""Prompts: where they are cut into passes, and these passes one by one.

Cuts depend on positions in the sequence alone, never on what else runs: a token goes through the
same kernels whoever else is there, and a prompt continued from a kept state is cut like a whole
one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from ..graph.errors import RequestError
from .buckets import MAX_TOKENS
from .items import checked_ids
from .rows import Pass

if TYPE_CHECKING:
    from .sequences import Sequences

# A prompt of at least WORTH_KEEPING tokens keeps its recurrent state LAST tokens before its end.
WORTH_KEEPING, LAST = 64, 4


def cuts(length: int, n: int, chunk: int, early: bool = False) -> Iterator[int]:
    """Sizes of the passes of n tokens after `length`: they end at absolute multiples of `chunk`.

    early: also stop a few tokens before the end, where a state that is kept serves the same prompt
    and those that only end differently. Where a prompt is cut must not change its values then."""
    before = n - LAST if early and n >= WORTH_KEEPING else 0
    yield from _aligned(length, before, chunk)
    yield from _aligned(length + before, n - before, chunk)


def _aligned(length: int, n: int, chunk: int) -> Iterator[int]:
    while n > 0:
        size = min(chunk - length % chunk, n)
        yield size
        length, n = length + size, n - size


def pass_kind(n: int) -> str:
    """The kind of plan that a prompt's pass of n tokens runs."""
    return "prefill" if n > 1 else "step"


class Prompt:
    """A prompt on its way into a sequence, behind what that holds. How far it has come follows
    from the sequence, so a pass that failed is made again by the next call of `step`."""

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
        self.behind, self.waited = list(behind), 0
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
        return -(-left // MAX_TOKENS) - self.waited

    @property
    def size(self) -> int:
        """Tokens of the next pass."""
        at = self.sequences.evaluated(self.seq)
        if at < self.start:
            return min(self.start - at, MAX_TOKENS)
        end = next((end for end in self.ends if end > at), None)
        return min(self.end - at, MAX_TOKENS) if end is None else end - at

    def step(self) -> tuple[Sequence[int], Pass]:
        """The next pass, and its tokens: those that are due in the sequence come first."""
        sequences, seq = self.sequences, self.seq
        at = sequences.evaluated(seq)
        if at < self.start:
            return sequences.evaluate_due(seq, self.hidden)
        end = next((end for end in self.ends if end > at), None)
        if end is None:
            missing = self.end - sequences.length(seq)
            if missing:
                sequences.append(seq, self.behind[-missing:])
            return sequences.evaluate_due(seq, self.hidden)
        part = self.tokens[at - self.start : end - self.start]
        kind = pass_kind(len(part))
        found = sequences.evaluate([(seq, part)], hidden=self.hidden, kind=kind)
        if end < self.ends[-1]:
            sequences.storage.remember(seq, self.ends[-1])
        return part, found

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
