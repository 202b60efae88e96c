"""The plans of passes that pick their tokens, compiled and bound when they are first asked for."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from itertools import product

from ..backends import Plan
from ..graph.errors import Unsupported
from ..models.step import CANDIDATES, NEXT_TOKEN, StepShape
from .buckets import sequence_buckets
from .picking import PickingPlan
from .pieces import Need, Piece, gathered
from .sequences import Sequences

Key = tuple[int, int, bool]  # sequences, candidates, and whether it gives hidden rows


class PickingPlans:
    """Those of one session, `each` of a key."""

    def __init__(self, sequences: Sequences, each: int) -> None:
        self.sequences, self._each = sequences, each
        self._plans: dict[Key, list[PickingPlan]] = {}

    def of(self, key: Key) -> list[PickingPlan]:
        """The plans of a key. Raises Unsupported where the device cannot."""
        plans = self._plans.get(key)
        if plans is None:
            plans = self._plans[key] = [self._bind(key) for _ in range(self._each)]
        return plans

    def prepare_all(self, hidden: bool) -> None:
        """Compile those of any number of sequences, at once or as pieces. hidden: also those that
        give hidden rows."""
        pieces = gathered()
        for size in sequence_buckets(self.sequences.n_seqs):
            for candidates, rows in product((1, CANDIDATES), {False, hidden}):
                key = size, candidates, rows
                if pieces is None:
                    with suppress(Unsupported):
                        self.of(key)
                else:
                    need = Need.SEVERAL if size > 1 else Need.ALONE
                    order = need, size, candidates, rows
                    pieces.append(Piece(order, partial(self._compiled, key), partial(self.of, key)))

    def _compiled(self, key: Key) -> Plan:
        sequences = self.sequences
        return sequences.model.plan(_shape(key), sequences.plan.capacity, "step", "ahead")

    def _bind(self, key: Key) -> PickingPlan:
        sequences, plan = self.sequences, self._compiled(key)
        if NEXT_TOKEN not in sequences.pools.specs:
            sequences.pools.add({NEXT_TOKEN: plan.states[NEXT_TOKEN]})
        bound = sequences.runner.bind(_shape(key), "step", "ahead")
        return PickingPlan(bound, sequences.storage.step(bound))


def _shape(key: Key) -> StepShape:
    size, candidates, hidden = key
    return StepShape(size, size, size, hidden, candidates=candidates)
