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

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..graph.case import Declared, f32, fixed, ints
from ..graph.op import Cost, Op
from ..graph.spec import TensorSpec
from .ragged import (
    KeptState,
    check_range,
    data_error,
    require_batch,
    require_kept,
    require_plain,
    sequences,
)

INPUTS = ("log?", "log_head?", "n_replay?", "n_held?", "n_direct?")
NAMES = tuple(name.rstrip("?") for name in INPUTS)
MEANING = """The memory of every recurrent op: seq_offsets: i32 [B + 1]; state_rows: i32 [B];
    {state}: f32, [R, plane] or [R, K, plane], zeros for a fresh sequence; start, head: i32 [B],
    given exactly when {state} has planes (ops/ragged.py says which are read and written); log: f32
    [R, L, entry], and log_head, n_replay, n_held, n_direct: i32 [B], all or none, for a {state}
    without planes: tokens that are computed but not committed (ops/replay.py).
    Raises BackendError for offsets, rows, planes or numbers of entries out of range and for a
    shared state row."""


def require_replay(
    op: Op,
    arg: str,
    state: TensorSpec,
    entry: int,
    batch: int,
    given: tuple[TensorSpec | None, ...],
    name_of_log: str = "log",
) -> tuple[TensorSpec, ...]:
    """Check a log with entries of this many floats and what goes with it, all or none of INPUTS.

    Returns the specs of the outputs that they add."""
    log = given[0] if given else None
    for name, spec in zip(NAMES[1:], given[1:], strict=False):
        if log is None:
            remedy = "all of a replay's inputs are given or none"
            op.require(spec is None, name, f"absent without a {name_of_log}", spec, remedy)
        else:
            remedy = f"a {name_of_log} comes with {', '.join(NAMES[1:])}"
            op.require(spec is not None, name, f"({batch},) for a {name_of_log}", None, remedy)
        if spec is not None:
            require_plain(op, name, spec, (batch,), "i32")
    if log is None:
        return ()
    op.require(state.rank == 2, arg, "of rank 2 with a log", state.shape, "keep planes or a log")
    fits = log.rank == 3 and (log.shape[0], log.shape[2]) == (state.shape[0], entry)
    fits = fits and log.shape[1] >= 1
    rows = f"[{state.shape[0]}, L, {entry}] with L of at least 1"
    op.require(fits, name_of_log, rows, log.shape)
    require_plain(op, name_of_log, log, log.shape, "f32")
    return (log.like(),)


def memory_inputs(state: str) -> tuple[str, ...]:
    """The last inputs of every recurrent op, of which this is the name of the kept state."""
    return ("seq_offsets", "state_rows", state, "start?", "head?", *INPUTS)


class Recurrent(Op):
    """What the ops with a kept state (ops/ragged.py) and a log beside it share: their last inputs
    (`memory_inputs`), which operands are a sequence's, and how numbers change from pass to pass.

    The first state of `writes` is the kept one. An op's own methods take the last inputs as one
    tuple and hand it on."""

    recurrent = True
    per_sequence = ("state_rows", "start", "head", *NAMES[1:])

    def __init_subclass__(cls) -> None:
        """The op's docstring ends with what holds for the last inputs of all."""
        cls.__doc__ = f"{cls.__doc__}\n\n    {MEANING.format(state=cls.kept())}"

    @classmethod
    def kept(cls) -> str:
        """The name of the kept state."""
        return next(iter(cls.writes.values()))

    def memory_specs(
        self, memory: tuple[Any, ...], width: int, entry: int
    ) -> tuple[TensorSpec, ...]:
        """Check the last inputs, for planes and entries of a log of this many floats.

        Returns the specs of the outputs but the first."""
        seq_offsets, state_rows, state, start, head, *replay = memory
        batch, arg = require_batch(self, seq_offsets), self.kept()
        require_kept(self, arg, state, width, batch, state_rows, start, head)
        return state.like(), *require_replay(self, arg, state, entry, batch, tuple(replay))

    def work(self, flops: int, inputs: tuple[Any, ...], y: TensorSpec) -> Cost:
        """The cost of a node that reads all its inputs but the memory whole and writes y, [N, ...].

        Of the memory it reads the states of B sequences, and writes the planes that N / B tokens
        each fill; with a log, it is that of a pass that logs all its tokens and folds nothing."""
        first = self.inputs.index("seq_offsets")
        seq_offsets, state_rows, state, _, _, *replay = inputs[first:]
        n, batch = y.shape[0], state_rows.shape[0]
        plane = 4 * state.shape[-1] * batch
        planes = min(state.shape[1] if state.rank == 3 else 1, -(-n // batch))
        read = sum(x.nbytes for x in (*inputs[:first], seq_offsets, state_rows)) + plane
        log = replay[0] if replay else None
        kept = plane * planes if log is None else 4 * n * log.shape[2]
        return Cost(flops, read, y.nbytes + kept)

    def run(
        self,
        n: int,
        memory: tuple[Any, ...],
        shape: tuple[int, ...],
        fold: Callable[[np.ndarray, np.ndarray], np.ndarray],
        token: Callable[[np.ndarray, int], tuple[np.ndarray, tuple[np.ndarray, ...]]],
    ) -> tuple[np.ndarray, ...]:
        """The reference of a pass over n rows, given a plane's shape and what the op does.

        fold: a plane after an entry of the log; token: a plane after a row, and the parts of the
        entry to log of it. Neither changes what it is given. Returns the outputs but the first."""
        seq_offsets, state_rows, state, start, head, *replay = memory
        rows_of = sequences(self, seq_offsets, n)
        passes = Replay(self, rows_of, state_rows, tuple(replay))
        kept = KeptState(self, rows_of, state, state_rows, start, head, passes.folded)
        for b, rows in enumerate(rows_of):
            m = kept.read(b).reshape(shape)
            newest: deque[np.ndarray] = deque(maxlen=kept.count)
            for entry in passes.to_fold(b):
                m = fold(m, entry)
                newest.append(m)
            for i, t in enumerate(rows):
                if i == passes.direct[b]:
                    for entry in passes.to_hold(b):
                        m = fold(m, entry)
                m, parts = token(m, t)
                if i < passes.direct[b]:
                    newest.append(m)
                else:
                    passes.write(b, i, *parts)
            kept.write(b, reversed(newest))
        return kept.state, *passes.outputs

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
            planes = shapes[self.kept()][1]
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

    @property
    def room(self) -> dict[str, Any]:
        """What a case with several sequences has beside them: other state rows and padding."""
        return dict(slots=7, pad=3) if len(self.lengths) > 1 else {}

    def inputs(self, rows: int, entry: int) -> dict[str, Declared]:
        """The declarations of a replay's inputs, for a state of this many rows."""
        numbers = (self.head, self.folded, self.held, self.direct)
        each = (n if isinstance(n, tuple) else (n,) * len(self.lengths) for n in numbers)
        log = f32(rows, self.size, entry)
        return dict(zip(NAMES, (log, *(ints(*n) for n in each)), strict=True))


@dataclass(frozen=True)
class Batch:
    """The sequences of a case and their memory.

    lengths: tokens of each, unless replay says it; keep: K, 0 for a state of rank 2; pad: rows of
    padding; slots: R, as many as sequences unless given, with rows permuted. Planes follow the ring
    unless start and head are given: newest T planes before the old one."""

    lengths: tuple[int, ...]
    keep: int = 0
    pad: int = 0
    slots: int = 0
    start: tuple[int, ...] | None = None
    head: tuple[int, ...] | None = None
    replay: Situation | None = None

    @classmethod
    def of(cls, lengths: tuple[int, ...], replay: Situation | None = None, **given: Any) -> Batch:
        """These sequences, or those of a replay."""
        return cls(replay.lengths if replay else lengths, replay=replay, **given)

    @property
    def n(self) -> int:
        """Rows of a tensor per token."""
        return sum(self.lengths) + self.pad

    def label(self, shape: str, *kinds: str, **named: object) -> str:
        """A case's label: shape, tokens, kinds, and what is named where it is not 0 or empty.

        Named `head` stands for the planes that are given."""
        named["head"] = "".join(map(str, self.head or ()))
        tokens = f"t={'+'.join(map(str, self.lengths))}"
        said = (f"{name}={value}" for name, value in named.items() if value)
        parts = ",".join([shape, tokens, *filter(None, kinds), *said])
        return parts + (self.replay.label if self.replay else "")

    def inputs(self, state: str, plane: int, entry: int, limit: float = 1.0) -> dict[str, Declared]:
        """The declarations of a recurrent op's last inputs; limit: of the state's values."""
        batch, rows = len(self.lengths), self.slots or len(self.lengths)
        shape = (rows, self.keep, plane) if self.keep else (rows, plane)
        declared: dict[str, Declared] = {
            "seq_offsets": fixed(np.cumsum((0, *self.lengths)), "i32"),
            "state_rows": ints(*(rows - 1 - b for b in range(batch))),
            state: f32(*shape, lo=-limit, hi=limit),
        }
        if self.keep:
            first = self.start or tuple(b % self.keep for b in range(batch))
            after = ((f - t) % self.keep for f, t in zip(first, self.lengths, strict=True))
            declared.update(start=ints(*first), head=ints(*(self.head or after)))
        if self.replay:
            declared.update(self.replay.inputs(rows, entry))
        return declared


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
