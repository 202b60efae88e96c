"""States kept along prompts: where a later prompt that parts from them can go on."""

from __future__ import annotations

from collections.abc import Iterator

from ..backends.base import KeptParts

# An edit of a prompt's last SHORT tokens costs about as much wherever it is.
SHORT = 512
# How many times the cost of another a state counts that lies where a prompt ended.
ENDS = 4


class PromptStates:
    """States of n_seqs sequences, and of texts parked behind them, by position, as pools keep them,
    of at most `limit` bytes in all. A state that several texts have in common counts once.

    Where the limit asks for it, the states go whose absence costs least. An edit d tokens before
    the newest state runs again what lies behind the last state before the edit; the cost of a
    missing state is the greatest ratio of that to d that its absence leads to. So states lie the
    closer, the nearer they are to a prompt's end: edits there are cheap, and none costs all. The
    newest state of a text is worth all of it: most prompts share all but their ends with an earlier
    one. Where prompts of a text ended, later ones part from it more often than elsewhere: a chat's
    templates leave out thoughts behind them, and answers are made anew. The i-th of the parked
    texts, by last use, counts a (i + 1)-th of a sequence's."""

    def __init__(self, n_seqs: int, limit: int, parked: int = 0) -> None:
        self.limit, self._n_seqs = limit, n_seqs
        self._kept: list[dict[int, KeptParts]] = [{} for _ in range(n_seqs + parked)]
        self._ends: list[set[int]] = [set() for _ in self._kept]  # where prompts ended
        self._by_use: list[int] = []  # parked texts, the one used last first

    @property
    def nbytes(self) -> int:
        """Bytes of all kept states."""
        every = {id(state): state for kept in self._kept for state in kept.values()}
        return sum(map(bytes_of, every.values()))

    def share(self, src: int, dst: int, end: int) -> None:
        """What src has up to `end` tokens is dst's, too, in place of what that had."""
        self._kept[dst] = {at: state for at, state in self._kept[src].items() if at <= end}
        self._ends[dst] = {at for at in self._ends[src] if at <= end}

    def order(self, places: list[int]) -> None:
        """The parked texts, the one used last first."""
        self._by_use = places

    def positions(self, seq: int) -> list[int]:
        """The positions at which a state is kept, ascending."""
        return sorted(self._kept[seq])

    def room(self, seq: int, size: int) -> int:
        """How many states of this size a sequence may keep when those that keep any share alike."""
        sequences = self._kept[: self._n_seqs]
        others = sum(1 for of, kept in enumerate(sequences) if kept and of != seq)
        return self.limit // (size * (others + 1)) if size else 0

    def make_room(self, seq: int, position: int, size: int, end: bool = False) -> bool:
        """Whether to keep a state of so many bytes at a position that has none; of others the least
        useful go where the limit asks for it. end: a prompt ends there."""
        if end:
            self._ends[seq].add(position)
        if position in self._kept[seq] or size > self.limit:
            return False
        while self.nbytes + size > self.limit:
            self._drop(self._least_useful(seq, position))
        return True

    def add(self, seq: int, position: int, state: KeptParts) -> None:
        """Keep a state where there is room, or room can be made."""
        if self.make_room(seq, position, bytes_of(state)):
            self._kept[seq][position] = state

    def before(self, seq: int, position: int) -> Iterator[tuple[int, KeptParts]]:
        """Kept states at or before a position, the nearest first."""
        for at in sorted((p for p in self._kept[seq] if p <= position), reverse=True):
            yield at, self._kept[seq][at]

    def cut(self, seq: int, position: int) -> None:
        """Forget states after a position: the tokens there are others now."""
        for at in [p for p in self._kept[seq] if p > position]:
            del self._kept[seq][at]
        self._ends[seq] = {at for at in self._ends[seq] if at <= position}

    def _drop(self, state: KeptParts) -> None:
        for kept in self._kept:
            for at in [at for at, other in kept.items() if other is state]:
                del kept[at]

    def _least_useful(self, seq: int, position: int) -> KeptParts:
        """The kept state whose removal costs least, as the class says, when a state at this
        position of seq counts as kept."""
        costs: dict[int, float] = {}
        states: dict[int, KeptParts] = {}
        for of, kept in enumerate(self._kept):
            for here, cost in self._costs(sorted({*kept, position} if of == seq else kept)):
                if (of, here) == (seq, position):
                    continue
                state = kept[here]
                states[id(state)] = state
                cost *= self._weight(of) * (ENDS if here in self._ends[of] else 1)
                costs[id(state)] = max(costs.get(id(state), 0.0), cost)
        return states[min(costs, key=lambda key: costs[key])]

    def _costs(self, at: list[int]) -> Iterator[tuple[int, float]]:
        """What the absence of each state costs, of a text with states at these positions."""
        for before, here, after in zip([0, *at], at, [*at[1:], *at[-1:]], strict=False):
            # The one before the newest serves edits between the two, if it lies close to it.
            last = after == at[-1] and after - here < SHORT
            cost = (at[-1] - before + SHORT) / (at[-1] - after + SHORT)
            yield here, (at[-1] + SHORT) / SHORT if last else cost

    def _weight(self, of: int) -> float:
        if of < self._n_seqs:
            return 1.0
        return 1.0 / (2 + self._by_use.index(of)) if of in self._by_use else 0.0


def planned(end: int, room: int, step: int) -> set[int]:
    """The multiples of step at which a prompt of `end` tokens should keep states, `room` of them
    beside one at its end: where neighbours have like ratios, as PromptStates explains. Where there
    is room for three, the last one is among them: from there the same prompt goes on with another
    ending."""
    grid = range(step, end, step)
    if room <= 0 or not grid:
        return set()
    if len(grid) <= room:
        return set(grid)
    ratio, found = ((end + SHORT) / SHORT) ** (1 / (room + 1)), set[int]()
    if room > 2:
        found.add(grid[-1])
    for i in range(1 + len(found), room + 1):
        at = max(step, int(end + SHORT - SHORT * ratio**i) // step * step)
        while at in found and at > step:
            at -= step
        found.add(at)
    return found


def bytes_of(state: KeptParts) -> int:
    """Bytes of a kept state."""
    return sum(part.nbytes for parts in state.values() for part in parts)
