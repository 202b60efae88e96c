"""How much recurrent memory a session has, by rollback strategy."""

from __future__ import annotations

from dataclasses import replace

from ...backends import Pools
from ...models.memories import Capacity, RecurrentSpec
from .layout import Demand, Layout, MemoryBytes, lays_out
from .recurrent import RecurrentMemory
from .replay import Replay
from .rollback import strategies
from .snapshots import Snapshots


class StrategyLayout(Layout):
    """A row for each sequence, and what the strategy needs beside it."""

    spec: RecurrentSpec

    def __init__(
        self, spec: RecurrentSpec, demand: Demand, strategy: type[RecurrentMemory]
    ) -> None:
        super().__init__(spec, demand)
        self.strategy: type[RecurrentMemory] = strategy

    def size(self, c: Capacity) -> Capacity:
        """Rows, planes, log entries."""
        needs = self.strategy.layout(self.demand.n_rs_seq)
        return replace(c, rows=self.demand.n_seqs * needs.rows, planes=needs.planes, log=needs.log)

    def nbytes(self, c: Capacity) -> MemoryBytes:
        """The live states; all else serves rollback."""
        every = sum(spec.nbytes for spec in self.spec.states(c).values())
        one = sum(4 * spec.shape[-1] for spec in self.spec.live(c).values())
        live = one * self.demand.n_seqs
        return MemoryBytes(
            recurrent=live,
            rollback=every - live,
            host=live * self.strategy.host_copies,
            kept=one,
        )

    def make(self, pools: Pools, c: Capacity) -> RecurrentMemory:
        """States of all sequences, zero."""
        names = list(self.spec.live(c))
        return self.strategy(self.demand.n_seqs, pools, names, self.demand.n_rs_seq)

    def affordable(self, c: Capacity, budget: int) -> bool:
        """Replay, as long as its log, which grows with the tokens to forget, takes no more than a
        checkpoint's copy of the state, which does not, or than a quarter of the budget; snapshots
        within the budget; a checkpoint always."""
        sizes = self.nbytes(c)
        if self.strategy is Replay:
            return sizes.rollback <= max(sizes.recurrent, budget // 4)
        return self.strategy is not Snapshots or sizes.rollback <= budget


@lays_out(RecurrentSpec)
def recurrent_layouts(spec: RecurrentSpec, demand: Demand) -> list[Layout]:
    """The strategies that rollback= names."""
    names = strategies(demand.rollback, demand.n_rs_seq, demand.on_host)
    return [StrategyLayout(spec, demand, strategy) for strategy in names]
