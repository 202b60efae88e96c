"""The log beside a kept state: tokens that a pass computes but does not commit.

Each row of log, [R, L, E], is a ring of L entries; row state_rows[b] belongs to sequence b like the
row of its state. Entry log_head[b] is the oldest live one. A pass of T tokens

1. folds the first n_replay[b] live entries into the committed state: the state's row;
2. runs the first n_direct[b] tokens on the committed state, too;
3. applies the next n_held[b] live entries to a working copy of it;
4. runs the other tokens on that copy, which is dropped, and logs them in the ring behind the live
   entries.

The caller lets the entries that were folded go, and decides by the next pass's n_replay how many of
the others count. Tokens only run directly where nothing is held, and entries that a pass reads are
not overwritten by it: n_replay + n_held + T - n_direct is at most L. The committed state stays
where nothing is folded or direct. A sequence without tokens folds; with nothing to fold either it
leaves everything as it is. A fold has the roundings of the token that it repeats, so the state is
that of plain passes, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..graph.case import f32, ints
from ..graph.op import Op
from ..graph.spec import TensorSpec
from .ragged import check_range, data_error, require_plain

INPUTS = ("log?", "log_head?", "n_replay?", "n_held?", "n_direct?")
NAMES = tuple(name.rstrip("?") for name in INPUTS)


def require_replay(
    op: Op,
    arg: str,
    state: TensorSpec,
    entry: int,
    batch: int,
    given: tuple[TensorSpec | None, ...],
) -> tuple[TensorSpec, ...]:
    """Check a log with entries of this many floats and what goes with it, all or none of INPUTS.

    Returns the specs of the outputs that they add."""
    log = given[0] if given else None
    for name, spec in zip(NAMES[1:], given[1:], strict=False):
        if log is None:
            remedy = "all of a replay's inputs are given or none"
            op.require(spec is None, name, "absent without a log", spec, remedy)
        else:
            remedy = f"a log comes with {', '.join(NAMES[1:])}"
            op.require(spec is not None, name, f"({batch},) for a log", None, remedy)
        if spec is not None:
            require_plain(op, name, spec, (batch,), "i32")
    if log is None:
        return ()
    op.require(state.rank == 2, arg, "of rank 2 with a log", state.shape, "keep planes or a log")
    fits = log.rank == 3 and (log.shape[0], log.shape[2]) == (state.shape[0], entry)
    fits = fits and log.shape[1] >= 1
    op.require(fits, "log", f"[{state.shape[0]}, L, {entry}] with L of at least 1", log.shape)
    require_plain(op, "log", log, log.shape, "f32")
    return (log.like(),)


class Recurrent(Op):
    """What the ops with a kept state (ops/ragged.py) and a log beside it share: which operands are
    a sequence's, and how its numbers change from pass to pass.

    The first state of `writes` is the kept one."""

    recurrent = True
    per_sequence = ("state_rows", "start", "head", *NAMES[1:])

    def split(
        self,
        t: int,
        tokens: int,
        numbers: Mapping[str, int],
        shapes: Mapping[str, tuple[int, ...]],
        /,
    ) -> dict[str, int]:
        """Planes go down the ring, so that the last pass ends at head. With a log, the first pass
        folds, and what earlier ones logged is held."""
        changed: dict[str, int] = {}
        if "head" in numbers:
            planes = shapes[next(iter(self.writes.values()))][1]
            head = (numbers["head"] + tokens - 1 - t) % planes
            changed["head"] = head
            changed["start"] = (head + 1) % planes if t else numbers["start"]
        if "log_head" in numbers:
            head, folded, held, direct = (numbers[name] for name in NAMES[1:])
            changed["log_head"] = (head + folded) % shapes["log"][1] if t else head
            changed["n_replay"] = 0 if t else folded
            changed["n_held"] = held + max(0, t - direct)
            changed["n_direct"] = int(t < direct)
        return changed

    def unrelated(self, tokens: int) -> dict[str, int]:
        """All tokens run directly, for they may be more than a log has entries; that allows for no
        entry that is held."""
        return {"n_direct": tokens, "n_held": 0}


class Replay:
    """What each sequence folds, holds, runs directly and logs; without a log all is direct.

    Raises BackendError for numbers out of range."""

    def __init__(
        self,
        op: Op,
        rows_of: list[range],
        state_rows: np.ndarray,
        given: tuple[np.ndarray | None, ...],
    ) -> None:
        self.rows = state_rows
        self.lengths = [len(rows) for rows in rows_of]
        self.log: np.ndarray | None = None
        self.direct = list(self.lengths)
        self.folded = self.held = [0] * len(rows_of)
        there = [array for array in given if array is not None]
        if not there:
            return
        log, *numbers = there
        self.log, self.size = log.copy(), log.shape[1]
        check_range(op, "log_head", numbers[0], 0, self.size)
        self.head, self.folded, self.held, self.direct = ([int(n) for n in a] for a in numbers)
        for b in range(len(rows_of)):
            self._check(op, b)

    def _check(self, op: Op, b: int) -> None:
        for name, values, limit in (
            ("n_replay", self.folded, self.size),
            ("n_held", self.held, self.size),
            ("n_direct", self.direct, self.lengths[b]),
        ):
            if not 0 <= values[b] <= limit:
                raise data_error(op, name, f"in [0, {limit}]", f"{values[b]} at [{b}]")
        if self.direct[b] and self.held[b]:
            got = f"{self.direct[b]} at [{b}], where {self.held[b]} are held"
            raise data_error(op, "n_direct", "0 where entries are held", got)
        needed = self.folded[b] + self.held[b] + self.lengths[b] - self.direct[b]
        if needed > self.size:
            want = f"long enough for the {needed} entries of sequence {b}"
            raise data_error(op, "log", want, f"{self.size}")

    @property
    def outputs(self) -> tuple[np.ndarray, ...]:
        """The new log, where there is one."""
        return () if self.log is None else (self.log,)

    def busy(self, b: int) -> bool:
        """Whether sequence b has anything to do."""
        return self.lengths[b] > 0 or self.folded[b] > 0

    def to_fold(self, b: int) -> list[np.ndarray]:
        """The entries that go into sequence b's committed state, oldest first."""
        return [self._entry(b, i) for i in range(self.folded[b])]

    def to_hold(self, b: int) -> list[np.ndarray]:
        """The entries that go into its working copy only, oldest first."""
        return [self._entry(b, self.folded[b] + i) for i in range(self.held[b])]

    def write(self, b: int, i: int, *parts: np.ndarray) -> None:
        """Log token i of sequence b, which is not a direct one."""
        at = self.folded[b] + self.held[b] + i - self.direct[b]
        self._entry(b, at)[...] = np.concatenate([part.reshape(-1) for part in parts])

    def _entry(self, b: int, i: int) -> np.ndarray:
        if self.log is None:
            raise IndexError("there is no log")
        entry: np.ndarray = self.log[self.rows[b], (self.head[b] + i) % self.size]
        return entry


@dataclass(frozen=True)
class Situation:
    """What a case's pass has to do: tokens of each sequence, the log's size, and per sequence (or
    one number for all) the oldest entry and how many are folded, held and direct."""

    lengths: tuple[int, ...]
    size: int
    head: int | tuple[int, ...] = 0
    folded: int | tuple[int, ...] = 0
    held: int | tuple[int, ...] = 0
    direct: int | tuple[int, ...] = 0

    @property
    def label(self) -> str:
        """The part of a case's label that tells the numbers apart."""
        named = {"head": self.head, "fold": self.folded, "held": self.held, "direct": self.direct}
        shown = (
            f",{name}={'+'.join(map(str, n)) if isinstance(n, tuple) else n}"
            for name, n in named.items()
            if n
        )
        return f",log={self.size}" + "".join(shown)

    def inputs(self, rows: int, entry: int) -> dict[str, Any]:
        """The declarations of a replay's inputs, for a state of this many rows."""
        numbers = (self.head, self.folded, self.held, self.direct)
        each = (n if isinstance(n, tuple) else (n,) * len(self.lengths) for n in numbers)
        log = f32(rows, self.size, entry)
        return dict(zip(NAMES, (log, *(ints(*n) for n in each)), strict=True))


SITUATIONS = (
    Situation((0,), 4, head=2, folded=3),
    Situation((0,), 3, held=2),
    Situation((1,), 1),
    Situation((1,), 6, head=5, folded=2),
    Situation((1,), 6, head=4, held=3),
    Situation((2,), 4, head=3, folded=1, held=1),
    Situation((4,), 4),
    Situation((4,), 2, direct=4),
    Situation((4,), 7, head=6, folded=7, direct=4),
    Situation((4,), 3, head=2, folded=1, direct=2),
    Situation((9,), 18, head=13, folded=9),
    Situation((9,), 12, head=7, folded=1, held=2),
    Situation((17,), 18, held=1),
    Situation((17,), 5, direct=12),
    Situation((17,), 2, head=1, folded=1, direct=16),
    Situation((40,), 3, folded=2, direct=39),
    Situation((2, 2), 5, head=(1, 4), folded=(3, 0), held=(0, 2)),
    Situation(
        (3, 0, 5, 1, 0),
        9,
        head=(8, 7, 0, 3, 1),
        folded=(2, 4, 0, 7, 0),
        held=(1, 0, 2, 0, 3),
        direct=(0, 0, 0, 1, 0),
    ),
)
