"""Prompts: where they are cut into passes, and these passes one by one.

Cuts depend on positions in the sequence alone, never on what else runs: a token goes through the
same kernels whoever else is there, and a prompt continued from a kept state is cut like a whole
one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..graph.errors import RequestError
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
        self, sequences: Sequences, seq: int, tokens: Sequence[int], hidden: bool = False
    ) -> None:
        """hidden: passes give hidden rows. Raises RequestError for a prompt without tokens, ids
        outside the vocabulary, or a context that is too small."""
        self.sequences, self.seq, self.hidden = sequences, seq, hidden
        self.tokens = checked_ids(tokens, sequences.model.n_vocab)
        self.start = sequences.length(seq)
        self._check_room()
        sizes = sequences.cuts(seq, len(self.tokens))
        self.ends = [self.start + sum(sizes[: i + 1]) for i in range(len(sizes))]

    @property
    def done(self) -> bool:
        """Whether all of it is evaluated."""
        return self.sequences.evaluated(self.seq) == self.ends[-1]

    @property
    def last(self) -> bool:
        """Whether the next pass is the last one."""
        at = self.sequences.evaluated(self.seq)
        return at >= self.start and len([end for end in self.ends if end > at]) == 1

    def step(self) -> tuple[Sequence[int], Pass]:
        """The next pass, and its tokens: those that are due in the sequence come first."""
        sequences, seq = self.sequences, self.seq
        at = sequences.evaluated(seq)
        if at < self.start:
            return sequences.evaluate_due(seq, self.hidden)
        end = next(end for end in self.ends if end > at)
        part = self.tokens[at - self.start : end - self.start]
        kind = pass_kind(len(part))
        found = sequences.evaluate([(seq, part)], hidden=self.hidden, kind=kind)
        if end < self.ends[-1]:
            sequences.storage.remember(seq, self.ends[-1])
        return part, found

    def _check_room(self) -> None:
        if not self.tokens:
            raise RequestError("the prompt has no tokens; give at least one")
        n, n_ctx = len(self.tokens), self.sequences.n_ctx
        if self.start + n > n_ctx:
            before = f"the sequence has {self.start} tokens, and " if self.start else ""
            raise RequestError(
                f"{before}the prompt's {n} tokens do not fit in a context of {n_ctx}; use a larger "
                "context (n_ctx) or a shorter prompt"
            )
