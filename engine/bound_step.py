"""A bound plan of a step with its input buffers at hand, and the filling of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..backends import BoundPlan
from ..graph.errors import RequestError
from .buckets import MAX_TOKENS
from .memory import PagedKV, RecurrentMemory

Items = Sequence[tuple[int, Sequence[int]]]


@dataclass(frozen=True)
class Part:
    """A sequence's share of a pass: tokens, of which the first `again` are committed ones that run
    again, and the position of the first."""

    seq: int
    tokens: Sequence[int]
    again: int
    first: int


class BoundStep:
    """The inputs of models.step.Inputs as attributes: this is looked at for every token."""

    def __init__(
        self,
        bound: BoundPlan,
        caches: Sequence[PagedKV],
        recurrent: RecurrentMemory | None,
    ) -> None:
        self.bound, self.recurrent = bound, recurrent
        inputs = bound.inputs
        # A graph lacks inputs that it does not read.
        unread = np.zeros(MAX_TOKENS + 1, np.int32)
        self.tokens = inputs.get("tokens", unread)
        self.positions = inputs.get("positions", unread)
        self.seq_offsets = inputs.get("seq_offsets", unread)
        self.state_rows = inputs.get("state_rows", unread)
        self.out_rows = inputs.get("out_rows")
        self.pages = [
            (cache, inputs["kv_rows" + suffix], inputs["block_table" + suffix])
            for cache, suffix in zip(caches, ("", "_window"), strict=False)
            if "kv_rows" + suffix in inputs
        ]
        # What a rollback strategy reads; see its `fill`.
        self.kept: dict[str, np.ndarray] = {
            name: inputs[name]
            for name in ("start", "head", "log_head", "n_replay", "n_held", "n_direct")
            if name in inputs
        }

    def fill(self, parts: Sequence[Part], total: int) -> None:
        """Write the step's data: tokens of the parts lie flat, in order; the rest is padding.

        The positions of this pass are reserved but not committed."""
        at = 0
        for i, part in enumerate(parts):
            self.seq_offsets[i] = at
            self.state_rows[i] = part.seq
            if len(part.tokens):
                self._fill_tokens(i, part, at)
            if self.recurrent is not None:
                self.recurrent.fill(self, i, part.seq)
            at += len(part.tokens)
        self.seq_offsets[len(parts) :] = total
        for data in self.kept.values():
            data[len(parts) :] = 0
        if total < len(self.tokens):
            self.tokens[total:] = 0
            self.positions[total:] = 0
            for _, rows, _ in self.pages:
                rows[total:] = -1

    def _fill_tokens(self, i: int, part: Part, at: int) -> None:
        n, first, seq = len(part.tokens), part.first, part.seq
        if n == 1:
            self.tokens[at] = part.tokens[0]
            self.positions[at] = first
            for cache, rows, table in self.pages:
                # What runs again has its key and value where others may share them.
                rows[at] = -1 if part.again else cache.row(seq, first)
                table[i] = cache.block_table[seq]
            return
        self.tokens[at : at + n] = part.tokens
        self.positions[at : at + n] = np.arange(first, first + n)
        for cache, rows, table in self.pages:
            rows[at : at + part.again] = -1
            rows[at + part.again : at + n] = cache.rows(seq, first + part.again, n - part.again)
            table[i] = cache.block_table[seq]

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
