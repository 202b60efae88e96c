"""A bound plan of a step with its input buffers at hand, and the filling of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..backends import BoundPlan
from .buckets import MOST_PROMPT
from .draws import Draws, RowDraws
from .memory import HybridMemory, Part

__all__ = ["BoundStep", "Extra", "Items", "Part"]
Items = Sequence[tuple[int, Sequence[int]]]
# Inputs of a program by name: arrays [n, ...] whose rows, one after the other, are the tokens'.
Extra = Mapping[str, Sequence[np.ndarray]]
# From so many sequences on, arrays are written faster as a whole than item by item.
MANY = 4
_COUNT = np.arange(MOST_PROMPT, dtype=np.int32)


class BoundStep:
    """The inputs of models.step.Inputs as attributes: this is looked at for every token."""

    def __init__(self, bound: BoundPlan, memory: HybridMemory) -> None:
        self.bound, self.memory = bound, memory
        inputs = bound.inputs
        # A graph lacks inputs that it does not read.
        unread = np.zeros(MOST_PROMPT + 1, np.int32)
        self.tokens = inputs.get("tokens", unread)
        self.positions = inputs.get("positions", unread)
        self.seq_offsets = inputs.get("seq_offsets", unread)
        self.state_rows = inputs.get("state_rows", unread)
        self.out_rows = inputs.get("out_rows")
        self.logit_rows = inputs.get("logit_rows")
        # Steps of one plan share them, as they share its inputs.
        self.draws: Draws | None = None
        self._fillers = memory.fillers(inputs)

    def fill(self, parts: Sequence[Part], total: int) -> None:
        """Write the step's data: tokens of the parts lie flat, in order; the rest is padding.

        The positions of this pass are reserved but not committed."""
        if total == len(parts) >= MANY and all(_is_single(part) for part in parts):
            self._fill_singles(parts)
        else:
            self._fill_each(parts)
        self.seq_offsets[len(parts) :] = total
        if total < len(self.tokens):
            self.tokens[total:] = 0
            self.positions[total:] = 0
        for filler in self._fillers:
            filler.pad(len(parts), total)

    def _fill_singles(self, parts: Sequence[Part]) -> None:
        n = len(parts)
        seqs = np.array([part.seq for part in parts], np.int32)
        positions = np.array([part.first for part in parts], np.int32)
        self.seq_offsets[:n] = _COUNT[:n]
        self.state_rows[:n], self.positions[:n] = seqs, positions
        self.tokens[:n] = [part.tokens[0] for part in parts]
        for filler in self._fillers:
            filler.fill_singles(seqs, positions)

    def _fill_each(self, parts: Sequence[Part]) -> None:
        at = 0
        for i, part in enumerate(parts):
            self.seq_offsets[i] = at
            self.state_rows[i] = part.seq
            n = len(part.tokens)
            if n == 1:
                self.tokens[at] = part.tokens[0]
                self.positions[at] = part.first
            elif n:
                self.tokens[at : at + n] = part.tokens
                self.positions[at : at + n] = np.arange(part.first, part.first + n)
            for filler in self._fillers:
                filler.fill(i, part, at)
            at += n

    def fill_out_rows(self, rows: Sequence[int], shown: Sequence[int] = ()) -> None:
        """Which rows get logits, where the graph does not give them all; shown: of which a graph
        that chooses gives the logits, too."""
        for into, given in ((self.out_rows, rows), (self.logit_rows, shown)):
            if into is not None:
                into[: len(given)] = given
                into[len(given) :] = 0

    def fill_draws(self, draws: RowDraws) -> None:
        """How the rows that `fill` has filled draw the tokens behind theirs, where they do."""
        if self.draws is not None:
            total = sum(n for _, n in draws)
            self.draws.fill(draws, self.positions[:total] + 1)

    def fill_extra(self, extra: Extra) -> None:
        """Inputs that only some programs have; rows of padding become zero."""
        for name, pieces in extra.items():
            self.bound.put(name, pieces)


def _is_single(part: Part) -> bool:
    """Whether it is one new token."""
    return len(part.tokens) == 1 and not part.again
