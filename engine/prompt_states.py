"""States kept along prompts: where a later prompt that parts from them can go on."""

from __future__ import annotations

from collections.abc import Iterator

from ..backends.base import KeptParts

# An edit of a prompt's last SHORT tokens costs about as much wherever it is.
SHORT = 512


class PromptStates:
    """States of n_seqs sequences by position, as pools keep them, of at most `limit` bytes in all.

    Where the limit asks for it, the states go whose absence costs least. An edit d tokens before
    the newest state runs again what lies behind the last state before the edit; the cost of a
    missing state is the greatest ratio of that to d that its absence leads to. So states lie the
    closer, the nearer they are to a prompt's end: edits there are cheap, and none costs all."""

    def __init__(self, n_seqs: int, limit: int) -> None:
        self.limit = limit
        self._kept: list[dict[int, KeptParts]] = [{} for _ in range(n_seqs)]

    @property
    def nbytes(self) -> int:
        """Bytes of all kept states."""
        return sum(_bytes(state) for kept in self._kept for state in kept.values())

    def positions(self, seq: int) -> list[int]:
        """The positions at which a state is kept, ascending."""
        return sorted(self._kept[seq])

    def room(self, seq: int, size: int) -> int:
        """How many states of this size a sequence may keep when those that keep any share alike."""
        others = sum(1 for of, kept in enumerate(self._kept) if kept and of != seq)
        return self.limit // (size * (others + 1)) if size else 0

    def make_room(self, seq: int, position: int, size: int) -> bool:
        """Whether to keep a state of so many bytes at a position that has none; of others the least
        useful go where the limit asks for it."""
        if position in self._kept[seq] or size > self.limit:
            return False
        while self.nbytes + size > self.limit:
            of, at = self._least_useful(seq, position)
            del self._kept[of][at]
        return True

    def add(self, seq: int, position: int, state: KeptParts) -> None:
        """Keep a state where there is room, or room can be made."""
        if self.make_room(seq, position, _bytes(state)):
            self._kept[seq][position] = state

    def before(self, seq: int, position: int) -> Iterator[tuple[int, KeptParts]]:
        """Kept states at or before a position, the nearest first."""
        for at in sorted((p for p in self._kept[seq] if p <= position), reverse=True):
            yield at, self._kept[seq][at]

    def cut(self, seq: int, position: int) -> None:
        """Forget states after a position: the tokens there are others now."""
        for at in [p for p in self._kept[seq] if p > position]:
            del self._kept[seq][at]

    def _least_useful(self, seq: int, position: int) -> tuple[int, int]:
        """The sequence and position of the kept state whose removal costs least, as the class says,
        when a state at this position of seq counts as kept."""
        found: list[tuple[float, int, int]] = []
        for of, kept in enumerate(self._kept):
            at = sorted({*kept, position} if of == seq else kept)
            for before, here, after in zip([0, *at], at, [*at[1:], *at[-1:]], strict=False):
                if (of, here) != (seq, position):
                    cost = (at[-1] - before + SHORT) / (at[-1] - after + SHORT)
                    found.append((cost, of, here))
        return min(found)[1:]


def planned(end: int, room: int, step: int) -> set[int]:
    """The multiples of step at which a prompt of `end` tokens should keep states, `room` of them
    beside one at its end: where neighbours have like ratios, as PromptStates explains."""
    grid = range(step, end, step)
    if room <= 0:
        return set()
    if len(grid) <= room:
        return set(grid)
    ratio, found = ((end + SHORT) / SHORT) ** (1 / (room + 1)), set[int]()
    for i in range(1, room + 1):
        at = max(step, int(end + SHORT - SHORT * ratio**i) // step * step)
        while at in found and at > step:
            at -= step
        found.add(at)
    return found


def _bytes(state: KeptParts) -> int:
    return sum(part.nbytes for parts in state.values() for part in parts)
