"""A bound plan of a step with its input buffers at hand, and the filling of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..backends import BoundPlan
from ..graph.errors import RequestError
from .buckets import MAX_TOKENS
from .memory import HybridMemory, Part

__all__ = ["BoundStep", "Items", "Part"]
Items = Sequence[tuple[int, Sequence[int]]]


class BoundStep:
    """The inputs of models.step.Inputs as attributes: this is looked at for every token."""

    def __init__(self, bound: BoundPlan, memory: HybridMemory) -> None:
        self.bound, self.memory = bound, memory
        inputs = bound.inputs
        # A graph lacks inputs that it does not read.
        unread = np.zeros(MAX_TOKENS + 1, np.int32)
        self.tokens = inputs.get("tokens", unread)
        self.positions = inputs.get("positions", unread)
        self.seq_offsets = inputs.get("seq_offsets", unread)
        self.state_rows = inputs.get("state_rows", unread)
        self.out_rows = inputs.get("out_rows")
        self._fillers = memory.fillers(inputs)

    def fill(self, parts: Sequence[Part], total: int) -> None:
        """Write the step's data: tokens of the parts lie flat, in order; the rest is padding.

        The positions of this pass are reserved but not committed."""
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
        self.seq_offsets[len(parts) :] = total
        if total < len(self.tokens):
            self.tokens[total:] = 0
            self.positions[total:] = 0
        for filler in self._fillers:
            filler.pad(len(parts), total)

    def fill_out_rows(self, rows: Sequence[int]) -> None:
        """Which rows get logits, where the graph does not give them all."""
        if self.out_rows is not None:
            self.out_rows[: len(rows)] = rows
            self.out_rows[len(rows) :] = 0

    def fill_extra(self, extra: Mapping[str, np.ndarray]) -> None:
        """Inputs that only some programs have, [n, ...] of new tokens; the rest becomes zero."""
        for name, values in extra.items():
            into = self.bound.inputs[name]
            if len(values) > len(into) or values.shape[1:] != into.shape[1:]:
                raise RequestError(
                    f"input {name!r} should have rows of {into.shape[1:]}, got {values.shape}"
                )
            into[: len(values)] = values
            into[len(values) :] = 0
