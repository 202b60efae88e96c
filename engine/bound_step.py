"""A bound plan of a step with its input buffers at hand, and the filling of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..backends import BoundPlan
from .memory import PagedKV

Items = Sequence[tuple[int, Sequence[int]]]


class BoundStep:
    """The inputs of models.step.Inputs as attributes: this is looked at for every token."""

    def __init__(self, bound: BoundPlan) -> None:
        self.bound = bound
        inputs = bound.inputs
        self.tokens = inputs["tokens"]
        self.positions = inputs["positions"]
        self.seq_offsets = inputs["seq_offsets"]
        self.kv_rows = inputs["kv_rows"]
        self.block_table = inputs["block_table"]
        self.state_rows = inputs["state_rows"]
        self.out_rows = inputs.get("out_rows")

    def fill(self, items: Items, total: int, kv: PagedKV) -> None:
        """Write the step's data: tokens of items lie flat, in order; the rest is padding.

        The positions of this pass are reserved in kv but not committed."""
        at = 0
        for i, (seq, tokens) in enumerate(items):
            n = len(tokens)
            first = kv.length(seq) + kv.pending(seq) - n
            self.seq_offsets[i] = at
            self.state_rows[i] = seq
            self.block_table[i] = kv.block_table[seq]
            if n == 1:
                self.tokens[at] = tokens[0]
                self.positions[at] = first
                self.kv_rows[at] = kv.row(seq, first)
            else:
                self.tokens[at : at + n] = tokens
                self.positions[at : at + n] = np.arange(first, first + n)
                self.kv_rows[at : at + n] = kv.rows(seq, first, n)
            at += n
            if self.out_rows is not None:
                self.out_rows[i] = at - 1
        self.seq_offsets[len(items) :] = total
        if total < len(self.tokens):
            self.tokens[total:] = 0
            self.positions[total:] = 0
            self.kv_rows[total:] = -1
        if self.out_rows is not None:
            self.out_rows[len(items) :] = 0
